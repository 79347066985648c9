"""`python -m actonce.client`: the same command line where there is no checkout with a `client.py`."""

from actonce.client import app

if __name__ == "__main__":
    app()
