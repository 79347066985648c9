"""`python -m actonce.client`."""

from actonce.client import app

if __name__ == "__main__":
    app()
