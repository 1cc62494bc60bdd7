"""Bad inputs: query strings, headers and bodies that a route must refuse, or ignore, without falling over."""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Headers = tuple[tuple[bytes, bytes], ...]

JSON: Headers = ((b"content-type", b"application/json"),)
FORM: Headers = ((b"content-type", b"application/x-www-form-urlencoded"),)
MULTIPART: Headers = ((b"content-type", b"multipart/form-data; boundary=XX"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One thing that a client sends, whatever the route. `why` names it in a failure."""

    why: str
    query: bytes = b""
    headers: Headers = ()
    body: bytes = b""


PLAIN = Input(why="nothing")

# Not of a route's own type, too long, or no text in any database.
TEXTS: tuple[str, ...] = (
    "", " ", "\n\t", "\0", "a\0b", "abc", "-1", "0", "1.5", "1e400", "NaN", "Infinity", "null", "true", "[]",
    "9" * 30, "9" * 5000, "-" + "9" * 30, str(2**31), str(2**63), "é", "🙂", "\u202e", "\ufffe", "١", "+5", "0x10",
    "'; DROP TABLE", "%s%n{0}{{7*7}}", "../../etc/passwd", "x" * 20_000,
    "00000000-0000-0000-0000-000000000000", "0000-00-00", "2026-02-30", "9999-12-31T23:59:60Z", "10000-01-01",
    "http://[", "//evil.example", "javascript:x", "default ", "no-such-pool",
)  # fmt: skip


def _cursor(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


CURSORS = (
    "x", "=", "AAAA", "%%%", _cursor(""), _cursor("p=\0"), _cursor("o=-1&p=1"), _cursor("o=9999999999999&p=1"),
    _cursor("r=1&p=" + "9" * 400), _cursor("p=2026-01-01"), _cursor("p=0001-01-01 00:00:00+00:00"), _cursor("é=é"),
    "-1--1", "1-", "-", "1-1-1", "9" * 40 + "-1", "1-" + "9" * 40, " 1-1", "1-1\0", "NaN-1", "1e1-1", "٣-1",
)  # fmt: skip

QUERIES: dict[str, bytes] = {
    "NUL": b"a=%00&q=%00&cursor=%00&after=%00",
    "a NUL in a name": b"%00=1",
    "half a character": b"q=%ff&limit=%ff&cursor=%c3&after=%f0%9f",
    "a surrogate": b"q=%ED%A0%80&cursor=%ED%A0%80",
    "bytes": b"q=\xff\xfe&limit=\xff",
    "UTF-8 that is not encoded": "limit=é&q=é".encode(),
    "broken escapes": b"%&%zz=%&a=%e",
    "separators": b"&&&===;;;??#",
    "brackets": b"[]=1&[a]=2&a[b][c]=3",
    "twice": b"limit=1&limit=0&cursor=&cursor=x&after=1-1&after=x",
    "2000 names": b"&".join(b"a%d=1" % number for number in range(2000)),
    "50 kB": b"q=" + b"x" * 50_000,
    "a format": b"format=xml&_format=yaml&lang=%00",
    "a bad address to go to": b"next=http://%5B&next=//evil.example",
    "another bad address to go to": b"next=%00%0d%0aSet-Cookie:%20a=b",
}

HEADERS: dict[str, Headers] = {
    "bytes as Authorization": ((b"authorization", b"Bearer \xff\xfe"),),
    "UTF-8 as Authorization": ((b"authorization", "Bearer é🙂".encode()),),
    "NUL as Authorization": ((b"authorization", b"Bearer sk-\0"),),
    "an empty Authorization": ((b"authorization", b""),),
    "a scheme alone": ((b"authorization", b"Bearer"),),
    "a scheme and a blank": ((b"authorization", b"Bearer "),),
    "a prefix alone": ((b"authorization", b"Bearer sk-"),),
    "two words": ((b"authorization", b"Bearer sk-a sk-b"),),
    "a long key": ((b"authorization", b"Bearer sk-" + b"x" * 10_000),),
    "a long token": ((b"authorization", b"Bearer " + b"x" * 10_000),),
    "no JWT": ((b"authorization", b"Bearer a.b.c"),),
    "a JWT of no algorithm": ((b"authorization", b"Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0."),),
    "a wrong scheme": ((b"authorization", b"Token x"),),
    "basic": ((b"authorization", b"Basic /////w=="),),
    "basic without sense": ((b"authorization", b"Basic \xff"),),
    "two Authorizations": ((b"authorization", b"Bearer x"), (b"authorization", b"Bearer y")),
    "a page as Accept": ((b"accept", b"text/html"),),
    "nonsense as Accept": ((b"accept", b"\xff;q=\xc3,;;;,a/b;q=x,*/*;q=NaN"),),
    "an empty Accept": ((b"accept", b" "),),
    "a word as Accept": ((b"accept", b"everything"),),
    "a long Accept": ((b"accept", b"a/b," * 5_000),),
    "an event stream": ((b"accept", b"text/event-stream"),),
    "a bad cursor to go on from": ((b"last-event-id", b"1-x"),),
    "a cursor of bytes": ((b"last-event-id", b"\xff\0"),),
    "a cursor of digits": ((b"last-event-id", b"9" * 5_000 + b"-1"),),
    "a session that is none": ((b"cookie", b"chatsite_session=\xff\0; csrftoken=\xc3\xa9"),),
    "a long session": ((b"cookie", b"chatsite_session=" + b"x" * 10_000),),
    "cookies without sense": ((b"cookie", b'=;;"; a=b=c; \\; chatsite_session; messages=x; messages="[["'),),
    "messages that nobody wrote": ((b"cookie", b"messages=W1siX19qc29uX21lc3NhZ2UiLDAsMjUsIngiXV0:1:x"),),
    "64 kB of cookies": ((b"cookie", b"; ".join(b"c%d=%s" % (number, b"x" * 60) for number in range(1_000))),),
    "1000 headers": tuple((b"x-%d" % number, b"x") for number in range(1_000)),
    "a 64 kB header": ((b"x-long", b"x" * 65_536),),
    "an app's session that is none": ((b"x-session-token", b"\xff\0"),),
    "an app's long session": ((b"x-session-token", b"x" * 10_000),),
    "an app's keys that are none": ((b"x-email-verification-key", b"\xff\0"), (b"x-password-reset-key", b"\xff\0-\0")),
    "a bad token against forgery": ((b"x-csrftoken", b"\xff\0"),),
    "a bad id of a request": ((b"x-request-id", b"\xff\0\n"),),
    "a host of bytes": ((b"host", b"\xff"),),
    "no host": ((b"host", b""),),
    "half a host": ((b"host", b"[::1"),),
    "another host": ((b"host", b"evil.example:99999"),),
    "bad proxies": ((b"x-forwarded-for", b"\xff,,[::,999.1.1.1"), (b"x-forwarded-proto", b"\0")),
    "bad languages": ((b"accept-language", b"\xff-;q=,," + b"a-" * 2_000),),
    "bad conditions": ((b"if-none-match", b"\xff"), (b"if-modified-since", b"\xff"), (b"range", b"bytes=x-\xff")),
    "origins without sense": ((b"origin", b"http://["), (b"referer", b"http://[\xff")),
    "no origin": ((b"origin", b"null"), (b"referer", b"")),
    "a client of bytes": ((b"user-agent", b"\xff\0\xfe" * 200),),
    "an empty client": ((b"user-agent", b""),),
    "a length that is none": ((b"content-length", b"abc"),),
    "a length below nothing": ((b"content-length", b"-1"),),
    "a length beyond everything": ((b"content-length", b"9" * 30),),
    "a type without sense": ((b"content-type", b"\xff;;=;boundary"),),
    "a charset without sense": ((b"content-type", b"application/json; charset=rot13"),),
    "a parameter without sense": ((b"content-type", b"application/json; title*=bogus'en'x"),),
    "another method, they say": ((b"x-http-method-override", b"\xff"), (b"x-method", b"DELETE")),
    "a script from the internet": ((b"x-requested-with", b"\xff"), (b"sec-fetch-site", b"\xff")),
}

_MANY = b"&".join(b"a%d=1" % number for number in range(2_000))
BODIES: dict[str, tuple[Headers, bytes]] = {
    "no JSON": (JSON, b"{"),
    "half of JSON": (JSON, b'{"content": "Hel'),
    "no body": (JSON, b""),
    "blanks": (JSON, b" \n "),
    "a list": (JSON, b"[]"),
    "a list of lists": (JSON, b"[[{}]]"),
    "a number": (JSON, b"7"),
    "a string": (JSON, b'"content"'),
    "null": (JSON, b"null"),
    "true": (JSON, b"true"),
    "NUL bytes": (JSON, b"\0\0"),
    "not UTF-8": (JSON, b'{"content": "\xff\xfe", "title": "\xff", "email": "\xff"}'),
    "surrogates as bytes": (JSON, b'{"content": "\xed\xa0\x80", "title": "\xed\xa0\x80", "email": "\xed\xa0\x80"}'),
    "UTF-16": (JSON, '{"content": "Hello"}'.encode("utf-16")),
    "a mark first": (JSON, b'\xef\xbb\xbf{"content": "Hello"}'),
    "NaN": (JSON, b'{"max_output_tokens": NaN, "content": NaN, "title": NaN, "email": NaN}'),
    "Infinity": (JSON, b'{"max_output_tokens": -Infinity, "title": Infinity, "email": Infinity}'),
    "more than a float": (JSON, b'{"max_output_tokens": 1e400, "title": 1e400, "email": 1e400, "id": 1e400}'),
    "5000 digits": (JSON, b'{"max_output_tokens": ' + b"9" * 5_000 + b"}"),
    "a nest": (JSON, b"[" * 100_000),
    "a nest of objects": (JSON, b'{"content":' * 50_000),
    "a closed nest": (JSON, b'{"content": ' + b"[" * 400 + b"]" * 400 + b"}"),
    "names twice": (JSON, b'{"content": "a", "content": null, "title": "a", "title": 7, "email": "a", "email": []}'),
    "odd names": (JSON, b'{"": 1, "\\u0000": 2, "\\ud800": 3, "__proto__": {}, "id": "x", "owner": "x"}'),
    "comments": (JSON, b'{"title": "x" /* or not */}'),
    "two bodies": (JSON, b"{}{}"),
    "a form as JSON": (JSON, b"content=Hello&title=x"),
    "JSON as a form": (FORM, b'{"content": "Hello"}'),
    "JSON as text": (((b"content-type", b"text/plain"),), b'{"content": "Hello"}'),
    "JSON as nothing": ((), b'{"content": "Hello"}'),
    "JSON as XML": (((b"content-type", b"application/xml"),), b"<a/>"),
    "a form of escapes": (FORM, b"a=%00&%ff=%ff&%&=&b=%ED%A0%80"),
    "a form of bytes": (FORM, b"\xff\xfe=\0"),
    "a form of 2000 fields": (FORM, _MANY),
    "a form in another charset": (((b"content-type", b"application/x-www-form-urlencoded; charset=hex"),), b"a=b"),
    "a form without a boundary": (((b"content-type", b"multipart/form-data"),), b"--X--"),
    "a form with a bad boundary": (((b"content-type", b"multipart/form-data; boundary=\xff"),), b"--\xff--"),
    "a form with a long boundary": (((b"content-type", b"multipart/form-data; boundary=" + b"x" * 500),), b"--x"),
    "a form that breaks off": (MULTIPART, b'--XX\r\nContent-Disposition: form-data; name="a"\r\n\r\nhel'),
    "a form without parts": (MULTIPART, b""),
    "a part without a name": (MULTIPART, b"--XX\r\nContent-Disposition: form-data\r\n\r\nx\r\n--XX--\r\n"),
    "a part in bad base64": (
        MULTIPART,
        (
            b'--XX\r\nContent-Disposition: form-data; name="a"\r\n'
            b"Content-Transfer-Encoding: base64\r\n\r\n\xff\r\n--XX--\r\n"
        ),
    ),
    "a file": (
        MULTIPART,
        b'--XX\r\nContent-Disposition: form-data; name="email"; filename="\xff\0/../x"\r\n\r\n\0\xff\r\n--XX--\r\n',
    ),
    "a part in another charset": (
        MULTIPART,
        b"--XX\r\nContent-Disposition: form-data; name*=rot13''a; filename*=x'y\r\n\r\nx\r\n--XX--\r\n",
    ),
}
TOO_MUCH = Input(why="6 MB", headers=JSON, body=b'{"content": "' + b"x" * 6_000_000 + b'"}')

# Of every kind that JSON has, and of no kind that a field here takes.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 10**30, -(10**30), [], {}, ["x"], {"a": "b"}, [None], [[]],
    "", " ", "\n\u3000\t", "a\0b", "\ud800", "\udfff\ud800", "a\u202eb", "\ufffe", "'; --", "x" * 129, "x" * 20_000,
    "http://[", "no-such-pool", "é" * 300, "9" * 400,
)  # fmt: skip


# Those that the parts underneath trip over: databases, hashes, whatever expects text.
WORST_VALUES: tuple[Any, ...] = ("a\0b", "\ud800", 10**30, ["x"], {"a": "b"}, None, "x" * 20_000, "")


def general() -> Iterator[Input]:
    """What any route with any method may get."""
    yield PLAIN
    yield from addresses()
    for why, headers in HEADERS.items():
        yield Input(why=f"header: {why}", headers=headers, body=b"{}")


def addresses() -> Iterator[Input]:
    """What may stand behind a route's address."""
    for why, query in QUERIES.items():
        yield Input(why=f"query: {why}", query=query)


def bodies() -> Iterator[Input]:
    """What a route may get as its body, whether it reads one or not."""
    for why, (headers, body) in BODIES.items():
        yield Input(why=f"body: {why}", headers=headers, body=body)


def short() -> Iterator[Input]:
    """For a method that a route has not, or that somebody may not use there: it is refused before much is read."""
    yield PLAIN
    for why in ("NUL", "half a character"):
        yield Input(why=f"query: {why}", query=QUERIES[why])
    for why in ("bytes as Authorization", "a session that is none", "a host of bytes", "a length that is none"):
        yield Input(why=f"header: {why}", headers=HEADERS[why])
    for why in ("no JSON", "a form without a boundary", "not UTF-8"):
        headers, body = BODIES[why]
        yield Input(why=f"body: {why}", headers=headers, body=body)


def shortest() -> Iterator[Input]:
    """For who is not let in, or asks with a method that nobody has."""
    yield PLAIN
    yield Input(why="query: half a character", query=QUERIES["half a character"])
    headers, body = BODIES["not UTF-8"]
    yield Input(why="body: not UTF-8", headers=(*headers, *HEADERS["a client of bytes"]), body=body)


def fields_as_json(good: Mapping[str, Any], *, each: tuple[Any, ...] = VALUES) -> Iterator[Input]:
    """All fields of one bad value, then each in turn of those in `each`, the others good."""
    for value in VALUES:
        yield _json(dict.fromkeys(good, value), why=f"fields: {ascii(value)[:40]}")
    for name in good:
        for value in each:
            yield _json({**good, name: value}, why=f"field: {name} = {ascii(value)[:40]}")


def fields_as_query(names: tuple[str, ...]) -> Iterator[Input]:
    """Each parameter bad in turn, and alone."""
    for name in names:
        for value in (*TEXTS, *CURSORS):
            # The request line that servers take is bounded.
            query = f"{quote(name)}={quote(value[:8_000])}".encode()
            yield Input(why=f"parameter: {name} = {ascii(value)[:40]}", query=query)


def fields_as_form(good: Mapping[str, str], *, texts: tuple[str, ...], each: tuple[str, ...]) -> Iterator[Input]:
    """All fields of one bad text, then each in turn of those in `each`, the others as they were."""
    for value in texts:
        yield _form(dict.fromkeys(good, value), why=f"form: {ascii(value)[:40]}")
    for name in good:
        for value in each:
            yield _form({**good, name: value}, why=f"form: {name} = {ascii(value)[:40]}")


def _json(fields: Mapping[str, Any], *, why: str) -> Input:
    return Input(why=why, headers=JSON, body=json.dumps(fields).encode())


def _form(fields: Mapping[str, str], *, why: str) -> Input:
    body = "&".join(f"{quote(name)}={quote(value)}" for name, value in fields.items()).encode()
    return Input(why=why, headers=FORM, body=body)
