package store

// schema1 is the first version. Times are nanoseconds since 1970; 0: no time.
const schema1 = `
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE sessions (
	id      TEXT PRIMARY KEY,
	tenant  TEXT NOT NULL,
	name    TEXT NOT NULL,
	state   TEXT NOT NULL,
	live    INTEGER NOT NULL,
	image   TEXT NOT NULL,
	ended   INTEGER NOT NULL,
	changed INTEGER NOT NULL,
	data    BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX session_key ON sessions (tenant, name) WHERE live = 1;
CREATE INDEX session_name ON sessions (tenant, name);
CREATE INDEX session_ended ON sessions (ended) WHERE live = 0;
CREATE INDEX session_image ON sessions (image) WHERE image <> '';

CREATE TABLE snapshots (
	id         TEXT PRIMARY KEY,
	tenant     TEXT NOT NULL,
	session    TEXT NOT NULL,
	session_id TEXT NOT NULL,
	name       TEXT NOT NULL,
	parent     TEXT NOT NULL,
	image      TEXT NOT NULL,
	size       INTEGER NOT NULL,
	memory     INTEGER NOT NULL,
	created    INTEGER NOT NULL,
	data       BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX snapshot_name ON snapshots (tenant, session, name);
CREATE INDEX snapshot_image ON snapshots (image);

CREATE TABLE vars (
	session TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
	name    TEXT NOT NULL,
	value   TEXT NOT NULL,
	PRIMARY KEY (session, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
	session TEXT NOT NULL,
	seq     INTEGER NOT NULL,
	time    INTEGER NOT NULL,
	data    BLOB NOT NULL,
	PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	time     INTEGER NOT NULL,
	tenant   TEXT NOT NULL,
	session  TEXT NOT NULL,
	actor    TEXT NOT NULL,
	action   TEXT NOT NULL,
	detail   TEXT NOT NULL,
	digest   TEXT NOT NULL,
	op       TEXT NOT NULL,
	verdict  TEXT NOT NULL,
	gate     TEXT NOT NULL,
	error    TEXT NOT NULL,
	stdout   INTEGER NOT NULL,
	stderr   INTEGER NOT NULL,
	duration INTEGER NOT NULL
) STRICT;
CREATE INDEX audit_session ON audit (tenant, session, id);
CREATE INDEX audit_time ON audit (time);

CREATE TABLE api_keys (
	id      TEXT PRIMARY KEY,
	name    TEXT NOT NULL,
	tenant  TEXT NOT NULL,
	scopes  TEXT NOT NULL,
	hash    BLOB NOT NULL UNIQUE,
	created INTEGER NOT NULL,
	expires INTEGER NOT NULL,
	revoked INTEGER NOT NULL
) STRICT;

CREATE TABLE tokens (
	id      TEXT PRIMARY KEY,
	tenant  TEXT NOT NULL,
	session TEXT NOT NULL,
	name    TEXT NOT NULL,
	scopes  TEXT NOT NULL,
	hash    BLOB NOT NULL UNIQUE,
	created INTEGER NOT NULL,
	expires INTEGER NOT NULL
) STRICT;
CREATE INDEX token_session ON tokens (session);

CREATE TABLE replies (
	tenant  TEXT NOT NULL,
	key     TEXT NOT NULL,
	request BLOB NOT NULL,
	done    INTEGER NOT NULL,
	status  INTEGER NOT NULL,
	body    BLOB NOT NULL,
	header  TEXT NOT NULL,
	created INTEGER NOT NULL,
	PRIMARY KEY (tenant, key)
) STRICT;
`

// schema2 adds the key that created a token, because a token ends with its key.
const schema2 = "ALTER TABLE tokens ADD COLUMN api_key TEXT NOT NULL DEFAULT ''"
