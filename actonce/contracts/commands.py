"""The client's command line as pages, procedures and answers tell it.

It exists wherever the package is installed: in a checkout, in an image, in a project of one's own. (`client.py` in the
root of a checkout is the same program.)
"""

CLIENT = "python -m actonce.client"
