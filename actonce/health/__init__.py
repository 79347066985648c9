"""What a deployment needs, really reached and written down; and the pages of the ledger, as paging wants them.

Readings go to the ledger, where the entry service finds them: whoever asks for dependencies waits for no probe.
"""

from actonce.health.pagebox import LedgerPages
from actonce.health.prober import Prober, ProbeSettings, Reading, RouteProbe, probe_once

__all__ = ["LedgerPages", "ProbeSettings", "Prober", "Reading", "RouteProbe", "probe_once"]
