"""The guarantee, in reading order: perform, fence, routes, combine, reconcile, decide, watcher, guard."""
