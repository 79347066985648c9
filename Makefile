# `make help` lists the targets. Only `make lock` needs more than Python >= 3.11.
.DEFAULT_GOAL := help
PY := .venv/bin/python

.PHONY: help
help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
