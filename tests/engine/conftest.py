"""What must not be left running."""

from tests.execution.conftest import nothing_left as nothing_left
