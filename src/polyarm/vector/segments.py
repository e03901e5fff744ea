"""The trainer's views of what has been appended to the block: rows, chunk segments and infos.

Workers learn of a segment from the board; how many they are to know goes out with each command.
"""

from __future__ import annotations

from polyarm.errors import HostLimit
from polyarm.vector.board import MAX_SEGMENTS, Board, Entry, SegmentKind
from polyarm.vector.infos import InfoKey, InfoReader, info_segment
from polyarm.vector.layout import Array, BlockLayout, Path, Segment
from polyarm.vector.memory import Block, Mail


class Chunk:
    """A chunk segment: actions, rewards and, if every step is delivered, observations.

    Args:
        capacity: The longest chunk it holds.
        views: Its arrays.
    """

    def __init__(self, capacity: int, views: dict[Path, Array]) -> None:
        self.capacity = capacity
        self.views = views
        self.actions = [array for name, array in views.items() if name[0] == "action"]
        self.rewards = list(views[("rewards",)])


class Segments:
    """The segments of one block.

    Args:
        block: The shared block.
        board: The control board, whose segment table announces what is appended.
        mail: Where the info schema is left for workers.
        layout: Layout of the block.
    """

    def __init__(self, block: Block, board: Board, mail: Mail, layout: BlockLayout) -> None:
        self._block = block
        self._board = board
        self._mail = mail
        self.layout = layout
        self.epoch = 0
        """How many segments workers are to know; counted once all is ready for one more."""
        self.rows = self._append(SegmentKind.ROWS, layout.row_segment(), layout.digest())
        self.epoch += 1
        self.chunk = self._append_chunk(1)
        self.epoch += 1
        self.longest = 1
        """The longest chunk that there has been; segments may have room for more."""
        self.infos: InfoReader | None = None

    def _append(self, kind: SegmentKind, segment: Segment, size: int) -> dict[Path, Array]:
        if self.epoch == MAX_SEGMENTS:
            raise HostLimit("the block has grown too often: its table of segments is full")
        offset = self._block.append(segment.nbytes)
        self._board.segments[self.epoch, [Entry.KIND, Entry.OFFSET, Entry.SIZE]] = (
            kind,
            offset,
            size,
        )
        return segment.views(self._block.map(offset, segment.nbytes))

    def _append_chunk(self, capacity: int) -> Chunk:
        segment = self.layout.chunk_segment(capacity)
        return Chunk(capacity, self._append(SegmentKind.CHUNK, segment, capacity))

    def reserve(self, chunk: int) -> None:
        """Make room for chunks of this length; grows geometrically after the first time."""
        if chunk <= self.longest:
            return
        if chunk > self.chunk.capacity:
            first = self.chunk.capacity == 1
            made = self._append_chunk(chunk if first else max(chunk, 2 * self.chunk.capacity))
            self.chunk, self.epoch = made, self.epoch + 1
        self.longest = chunk

    def set_schema(self, schema: tuple[InfoKey, ...]) -> None:
        """Fix which info keys travel in the block."""
        num_envs = self.layout.num_envs
        letter = self._mail.put(num_envs, schema, to_worker=True)
        views = self._append(SegmentKind.INFO, info_segment(schema, num_envs), letter)
        reader = InfoReader(schema, views)
        self.infos, self.epoch = reader, self.epoch + 1
