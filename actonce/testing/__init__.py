"""For everyone's drills: faults on the wire, taps, kill points, and the witness that records what happened.

The system under test is touched only as processes and through sockets; nothing here imports it.
"""
