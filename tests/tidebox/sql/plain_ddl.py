"""DDL in one step, for tests of everything else: documents are written down as if their jobs were done."""

from tidebox.sql.bootstrap import bootstrap
from tidebox.sql.catalog import SchemaCache
from tidebox.sql.ddl.columns import PUBLIC
from tidebox.sql.ddl.defaults import Settings
from tidebox.sql.ddl.tables import DEFAULT_CHARSET, build_database, build_table
from tidebox.sql.meta import Meta
from tidebox.sql.node import DdlRequest, Node
from tidebox.sql.parse import parse
from tidebox.sql.parse.statements import CreateDatabase, CreateTable, DropTable
from tidebox.sql.session import SqlSession
from tidebox.sql.transaction import Transaction
from tidebox.sql.wire.session import Affected
from tidemill.model.ddl import ActionType


class PlainDdl:
    def __init__(self, cluster) -> None:
        self._cluster = cluster
        self.cache: SchemaCache | None = None

    def execute(self, request: DdlRequest) -> Affected:
        statement = parse(request.text)
        transaction = Transaction(self._cluster)
        meta = Meta(transaction)
        match statement:
            case CreateDatabase():
                (schema_id,) = meta.next_ids(1)
                meta.put_database(build_database(schema_id, statement.name, DEFAULT_CHARSET, PUBLIC))
                self._bump(meta, ActionType.CREATE_SCHEMA, schema_id, 0)
            case CreateTable():
                schema = self.cache.current().database(statement.table.schema or request.database)
                document = build_table(statement, DEFAULT_CHARSET, Settings(request.time_zone, request.is_strict))
                (document["id"],) = meta.next_ids(1)
                meta.put_table(schema.id, document)
                self._bump(meta, ActionType.CREATE_TABLE, schema.id, document["id"])
            case DropTable():
                for name in statement.tables:
                    table = self.cache.current().table(name.schema or request.database, name.name)
                    meta.drop_table(table.schema_id, table.id)
                    self._bump(meta, ActionType.DROP_TABLE, table.schema_id, table.id)
            case _:
                raise AssertionError(f"not for this: {request.text}")
        transaction.commit()
        self.cache.reload()
        return Affected()

    def _bump(self, meta: Meta, kind: ActionType, schema_id: int, table_id: int) -> None:
        meta.bump_version(
            {
                "version": 0,
                "type": int(kind),
                "schema_id": schema_id,
                "table_id": table_id,
                "old_table_id": 0,
                "old_schema_id": 0,
                "regenerate_schema_map": False,
                "affected_options": None,
            }
        )


def plain_node(cluster) -> Node:
    bootstrap(lambda: Transaction(cluster))
    ddl = PlainDdl(cluster)
    ddl.cache = SchemaCache(lambda: Transaction(cluster), cluster.clock.monotonic)
    return Node(cluster, ddl.cache, ddl)


def session_on(node: Node, database: str = "test") -> SqlSession:
    session = SqlSession(node)
    session.use(database)
    return session
