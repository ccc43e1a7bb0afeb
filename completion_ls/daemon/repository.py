"""The other files of a request, as the prompt takes them."""

from __future__ import annotations

from completion_ls.prompt.formats import Repository
from completion_ls.wire.messages import Complete


def repository_of(request: Complete) -> Repository | None:
    """None where a request has no other files."""
    if not request.files:
        return None
    files = tuple((file.path, file.text) for file in request.files)
    return Repository(request.repository, request.path, files)
