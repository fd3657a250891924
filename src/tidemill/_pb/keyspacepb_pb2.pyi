from tidemill._pb import pdpb_pb2 as _pdpb_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyspaceState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENABLED: _ClassVar[KeyspaceState]
    DISABLED: _ClassVar[KeyspaceState]
    ARCHIVED: _ClassVar[KeyspaceState]
    TOMBSTONE: _ClassVar[KeyspaceState]
ENABLED: KeyspaceState
DISABLED: KeyspaceState
ARCHIVED: KeyspaceState
TOMBSTONE: KeyspaceState

class KeyspaceMeta(_message.Message):
    __slots__ = ("id", "name", "state", "created_at", "state_changed_at", "config")
    class ConfigEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STATE_CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: KeyspaceState
    created_at: int
    state_changed_at: int
    config: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[_Union[KeyspaceState, str]] = ..., created_at: _Optional[int] = ..., state_changed_at: _Optional[int] = ..., config: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LoadKeyspaceRequest(_message.Message):
    __slots__ = ("header", "name")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.RequestHeader
    name: str
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.RequestHeader, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class LoadKeyspaceResponse(_message.Message):
    __slots__ = ("header", "keyspace")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.ResponseHeader
    keyspace: KeyspaceMeta
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.ResponseHeader, _Mapping]] = ..., keyspace: _Optional[_Union[KeyspaceMeta, _Mapping]] = ...) -> None: ...

class LoadKeyspaceByIDRequest(_message.Message):
    __slots__ = ("header", "id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.RequestHeader
    id: int
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.RequestHeader, _Mapping]] = ..., id: _Optional[int] = ...) -> None: ...

class GetAllKeyspacesRequest(_message.Message):
    __slots__ = ("header", "start_id", "limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.RequestHeader
    start_id: int
    limit: int
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.RequestHeader, _Mapping]] = ..., start_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetAllKeyspacesResponse(_message.Message):
    __slots__ = ("header", "keyspaces")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.ResponseHeader
    keyspaces: _containers.RepeatedCompositeFieldContainer[KeyspaceMeta]
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.ResponseHeader, _Mapping]] = ..., keyspaces: _Optional[_Iterable[_Union[KeyspaceMeta, _Mapping]]] = ...) -> None: ...

class WatchKeyspacesRequest(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.RequestHeader
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.RequestHeader, _Mapping]] = ...) -> None: ...

class WatchKeyspacesResponse(_message.Message):
    __slots__ = ("header", "keyspaces")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    header: _pdpb_pb2.ResponseHeader
    keyspaces: _containers.RepeatedCompositeFieldContainer[KeyspaceMeta]
    def __init__(self, header: _Optional[_Union[_pdpb_pb2.ResponseHeader, _Mapping]] = ..., keyspaces: _Optional[_Iterable[_Union[KeyspaceMeta, _Mapping]]] = ...) -> None: ...
