"""Command line of actonce: see `python client.py --help` and `actonce.client`."""

from actonce.client import app

if __name__ == "__main__":
    app()
