"""What of a long message is quoted where there is little room: its beginning and its end."""

from inference.contracts import ChatTokenizer

_LEFT_OUT = "\n[…]\n"


def shortened(content: str, *, most: int, tokenizer: ChatTokenizer) -> str:
    """The content, or its beginning and its end where it takes more than `most` tokens."""
    ids = tokenizer.encode(content)
    if len(ids) <= most:
        return content
    half = max(1, most // 2)
    return tokenizer.decode(ids[:half]) + _LEFT_OUT + tokenizer.decode(ids[-half:])
