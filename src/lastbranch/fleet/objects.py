"""The places of a store's objects: a folder, or a bucket of an object store by obstore.

An object appears whole or not at all. `create` makes an object only if its name is free, and of several callers at once
only one succeeds: there is no other locking.
"""

from __future__ import annotations

import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import FormatError, UnavailableError
from ..model import PartFile, naming

__all__ = ["MOST_JSON", "Folder", "Object", "Objects", "open_objects"]

MOST_JSON = 256 << 20
"""Bytes of an object that lists parts: a million of them, and no more than there is memory."""
_AT_ONCE = 8
"""Objects that are fetched at the same time."""


class Object(NamedTuple):
    """An object that is there: its name, bytes, and the time of its last change in seconds since 1970."""

    name: str
    size: int
    changed: float


class Objects(ABC):
    """Named objects. Names have parts between slashes."""

    url: str

    @abstractmethod
    def below(self, prefix: str) -> list[Object]:
        """The objects below the folder ``prefix``, by name."""

    @abstractmethod
    def get(self, name: str, most: int | None = None) -> bytes | None:
        """The bytes of an object, ``None`` where there is none of that name. Raises `FormatError` where these are more
        than ``most``."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make an object, or replace it."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make an object if its name is free. If several callers try at once, one gets ``True``."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove objects that may be there."""

    @abstractmethod
    def path(self, name: str, scratch: str) -> str:
        """The file of this machine that `paths` will say holds an object."""

    @abstractmethod
    def paths(self, names: Iterable[str], scratch: str) -> list[str]:
        """Files of this machine that hold the objects; remote objects are fetched into the folder ``scratch``.

        Raises `UnavailableError` where one is gone."""


class Folder(Objects):
    """A folder of this machine, local or mounted: its file system must support hard links for `create`.

    The folder itself may be a symbolic link, but nothing in the folder may: other users may write to the folder, and a
    link would make us read, replace or delete files that these users cannot. Raises `UnavailableError` for a link in
    the folder, and for anything else that is no file.
    """

    def __init__(self, path: str) -> None:
        self.url = path
        self._root = path
        self._inside: set[str] = set()
        """Folders that are known to be below the root."""

    def _path(self, name: str) -> str:
        path = os.path.join(self._root, *name.split("/"))
        folder = os.path.dirname(path)
        if folder not in self._inside:
            root, real = os.path.realpath(self._root), os.path.realpath(folder)
            if os.path.relpath(real, root) != os.path.relpath(folder, self._root):
                raise UnavailableError(f"{folder} leads elsewhere: what is in a store is not a symbolic link")
            self._inside.add(folder)
        return path

    def below(self, prefix: str) -> list[Object]:
        found = []
        for folder, _, files in os.walk(os.path.dirname(self._path(f"{prefix}/"))):
            for file in files:
                path = os.path.join(folder, file)
                with suppress(FileNotFoundError):  # swept meanwhile
                    state = os.lstat(path)
                    name = os.path.relpath(path, self._root).replace(os.sep, "/")
                    found.append(Object(name, state.st_size, state.st_mtime))
        return sorted(found)

    def get(self, name: str, most: int | None = None) -> bytes | None:
        path = self._path(name)
        try:
            _check_file(path)
            with open(os.open(path, _READ_FILE), "rb") as file:
                _check_size(path, os.fstat(file.fileno()).st_size, most)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, name: str, data: bytes) -> None:
        with self._part(name, data) as part:
            part.appear()

    def create(self, name: str, data: bytes) -> bool:
        with self._part(name, data) as part, naming(part.final):
            try:
                os.link(part.path, part.final)
            except FileExistsError:
                return False
        return True

    def _part(self, name: str, data: bytes) -> PartFile:
        path = self._path(name)
        with naming(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        part = PartFile(path)
        try:
            done = memoryview(data)
            while done:
                done = done[part.file.write(done) :]
        except BaseException:
            part.discard()
            raise
        return part

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def path(self, name: str, scratch: str) -> str:
        return self._path(name)

    def paths(self, names: Iterable[str], scratch: str) -> list[str]:
        found = [self._path(name) for name in names]
        for path in found:
            try:
                _check_file(path)
            except (FileNotFoundError, NotADirectoryError):
                raise _missing_error(path) from None
        return found


_READ_FILE = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def _check_file(path: str) -> None:
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise UnavailableError(f"{path} is not a file: a store has neither links nor devices")


class Bucket(Objects):
    """A bucket of S3, Google Cloud Storage or Azure, by obstore; credentials are those of its environment variables."""

    def __init__(self, url: str) -> None:
        try:
            import obstore
            from obstore import store
        except ImportError:
            raise UnavailableError(f"{url} needs obstore", hint="pip install 'lastbranch[fleet]'") from None
        self.url = url
        self._obstore: Any = obstore
        with self._failures():
            self._store: Any = store.from_url(url, **_options(url))

    def below(self, prefix: str) -> list[Object]:
        with self._failures():
            found = [one for chunk in self._obstore.list(self._store, prefix) for one in chunk]
        return sorted(Object(one["path"], one["size"], one["last_modified"].timestamp()) for one in found)

    def get(self, name: str, most: int | None = None) -> bytes | None:
        with self._failures():
            try:
                found = self._obstore.get(self._store, name)
                _check_size(f"{self.url.rstrip('/')}/{name}", found.meta["size"], most)
                return bytes(found.bytes())
            except FileNotFoundError:
                return None

    def put(self, name: str, data: bytes) -> None:
        with self._failures():
            self._obstore.put(self._store, name, data)

    def create(self, name: str, data: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError

        with self._failures():
            try:
                self._obstore.put(self._store, name, data, mode="create")
            except (AlreadyExistsError, FileExistsError):
                return False
        return True

    def delete(self, names: Iterable[str]) -> None:
        with self._failures():
            for name in names:
                with suppress(FileNotFoundError):
                    self._obstore.delete(self._store, name)

    def path(self, name: str, scratch: str) -> str:
        return os.path.join(scratch, name.replace("/", "-"))

    def paths(self, names: Iterable[str], scratch: str) -> list[str]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(lambda name: self._fetch(name, scratch), names))

    def _fetch(self, name: str, scratch: str) -> str:
        path = self.path(name, scratch)
        if not os.path.exists(path):
            data = self.get(name)
            if data is None:
                raise _missing_error(f"{self.url.rstrip('/')}/{name}")
            with naming(path), tempfile.NamedTemporaryFile(dir=scratch, delete=False) as out:
                out.write(data)
            os.replace(out.name, path)
        return path

    def _failures(self) -> _Failures:
        return _Failures(self.url)


class _Failures:
    """Turns errors of obstore, and of its services, into our errors of one line."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        from obstore.exceptions import BaseError

        if isinstance(error, BaseError | OSError | ValueError):
            line = " ".join(str(error).split())[:300]
            raise UnavailableError(f"{self._url}: {line}", hint="are the address and its credentials right?") from None


def _options(url: str) -> dict[str, Any]:
    """Plain HTTP is for servers of this machine only."""
    if not url.startswith("s3:"):
        return {}
    from urllib.parse import urlsplit

    endpoint = os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT") or ""
    there = urlsplit(endpoint)
    local = there.hostname in ("127.0.0.1", "::1", "localhost")
    return {"client_options": {"allow_http": True}} if there.scheme == "http" and local else {}


def _check_size(name: str, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise FormatError(f"larger than {most} bytes", file=name, field="size", value=size)


def _missing_error(name: str) -> UnavailableError:
    hint = "`lastbranch fleet verify` names what is missing; a query that ran while parts were swept can be run again"
    return UnavailableError(f"{name}: a part of the store is gone", hint=hint)


def open_objects(url: str) -> Objects:
    """The objects at ``url``: a folder, or the address of a bucket (``s3://NAME/FOLDER``, ``gs://``, ``az://``)."""
    scheme, colon, _ = url.partition("://")
    if colon and scheme in ("s3", "gs", "az", "s3a", "gcs", "abfs", "abfss", "adl", "azure"):
        return Bucket(url)
    if colon and scheme != "file":
        raise UnavailableError(f"{url}: {scheme} is not known", hint="a folder, s3://, gs:// or az://")
    return Folder(url.removeprefix("file://"))
