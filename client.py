"""Command line of actonce: `python -m actonce.client`, from the root of a checkout; see `actonce.client`."""

from actonce.client import app

if __name__ == "__main__":
    app()
