from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("cluster", "sender", "receiver", "session", "version")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    sender: str
    receiver: str
    session: int
    version: int
    def __init__(self, cluster: _Optional[str] = ..., sender: _Optional[str] = ..., receiver: _Optional[str] = ..., session: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("number", "kind", "content")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    number: int
    kind: str
    content: bytes
    def __init__(self, number: _Optional[int] = ..., kind: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class Packet(_message.Message):
    __slots__ = ("hello", "envelopes")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("received",)
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    received: int
    def __init__(self, received: _Optional[int] = ...) -> None: ...
