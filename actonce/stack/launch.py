"""Replace this process by a command, after asking the kernel for two favours. Standard library only.

    python -I -S launch.py PARENT_PID DEATH_SIGNAL USER COMMAND…

DEATH_SIGNAL (0: none): on Linux, sent to the command when the parent ends. USER ("-": stay who we are): PostgreSQL
refuses to run as root, so root hands it to an account without privileges. That account may be unable to enter a
private folder of root's; instead of opening such folders to everybody, the command then keeps the one capability
that lets it pass (it stays weaker than the root that started it).
"""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1  # part of the default set of container engines; CAP_DAC_READ_SEARCH is not
CAPABILITY_VERSION_3 = 0x20080522


def _prctl(*args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(*[ctypes.c_ulong(a) for a in (*args, 0, 0, 0, 0, 0)[:5]]) != 0:
        raise OSError(ctypes.get_errno(), f"prctl{args}: {os.strerror(ctypes.get_errno())}")


def _keep_dac_override() -> None:
    """After the change of user: make CAP_DAC_OVERRIDE effective, inheritable and ambient."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bit = 1 << CAP_DAC_OVERRIDE
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE)


def _become(user: str) -> None:
    import pwd

    account = pwd.getpwnam(user)
    linux = sys.platform == "linux"
    if linux:
        _prctl(PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    os.environ["HOME"] = "/"
    if linux:
        # Where the capability is withheld the command still runs, and says itself which folder it cannot enter.
        with contextlib.suppress(OSError):
            _keep_dac_override()


def main() -> None:
    parent, death_signal, user, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    if user != "-":
        _become(user)
    if death_signal and sys.platform == "linux":
        # After the change of user, which clears it.
        _prctl(PR_SET_PDEATHSIG, death_signal)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)  # the parent died before the kernel knew of the favour
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
