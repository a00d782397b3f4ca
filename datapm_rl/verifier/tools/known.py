"""The tools there are: variables of the environment, models and sampling as in the official DataPRM release."""

from __future__ import annotations

from dataclasses import dataclass

from datapm_rl.chat.types import ChatSampling


@dataclass(frozen=True)
class Tool:
    """`prefix`: of its variables in the environment. `model`: if they name none. `signature`: for the prompt."""

    prefix: str
    model: str
    sampling: ChatSampling
    signature: str


_QUERY_DOCUMENT = '''\
def query_document(query: str, file_path: str) -> str:
    """Ask a question about a text document (.md, .txt, .json, .jsonl, .csv or other text) and get the answer.

    Args:
        query: The question about the document.
        file_path: Path of the document in the working directory.
    Returns:
        The answer, or a text that starts with [Error].
    """'''

_QUERY_IMAGE = '''\
def query_image(query: str, image_path: str) -> str:
    """Ask a question about an image (.png, .jpg, .jpeg, .gif or .webp) and get the answer.

    Args:
        query: The question about the image.
        image_path: Path of the image in the working directory.
    Returns:
        The answer, or a text that starts with [Error].
    """'''

TOOLS = {
    "query_document": Tool("DOC", "deepseek-chat", ChatSampling(1.0, 0.95, -1, 4096), _QUERY_DOCUMENT),
    "query_image": Tool("IMG", "Qwen3-VL-235B-A22B-Instruct", ChatSampling(0.2, 0.95, -1, 4096), _QUERY_IMAGE),
}
