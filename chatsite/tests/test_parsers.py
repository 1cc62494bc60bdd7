"""The body of a request, as far as a view test cannot show it."""

import io

import pytest
from rest_framework.exceptions import ParseError

from chatsite.parsers import StrictJSONParser


def test_the_body_of_a_client_that_went_away_is_malformed_and_no_fault_of_ours() -> None:
    body = io.BytesIO(b"{}")
    body.close()
    with pytest.raises(ParseError):
        StrictJSONParser().parse(body)
