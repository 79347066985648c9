"""The command line of callers and operators. Talks to the entry service and to nothing else; imports nothing of ours.

One module for each group of commands; `base` has what they share. `python -m actonce.client` runs it wherever the
package is installed; `client.py` is the same from the root of a checkout.
"""

from actonce.client import access, approving, browsing, deployment, operating, releasing, restoring, tasks
from actonce.client.app import app

__all__ = ["access", "app", "approving", "browsing", "deployment", "operating", "releasing", "restoring", "tasks"]
