"""The words and data of an operation. Imports nothing else of actonce: stdlib, pydantic and rfc8785 only."""
