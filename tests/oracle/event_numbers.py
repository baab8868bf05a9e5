"""KV events of a scheduler, and blocks that leave windows, as recordings have them."""

from vllm.distributed.kv_events import BlockRemoved, BlockStored


class EventNumbers:
    """Stands in for the KV event publisher; numbers block hashes by first appearance.

    With several groups of layers the number of the group is the last element of an event.
    """

    def __init__(self, by_group):
        self._by_group = by_group
        self._numbers = {}
        self._events = []

    def publish(self, batch):
        for event in batch.events:
            if isinstance(event, BlockStored):
                parent = event.parent_block_hash
                parent = None if parent is None else self._number(parent)
                self._events.append(["S", parent, self._numbers_of(event), *self._group_of(event)])
            elif isinstance(event, BlockRemoved):
                self._events.append(["R", self._numbers_of(event), *self._group_of(event)])
            else:
                self._events.append(["C"])

    def shutdown(self):
        pass

    def take(self):
        events, self._events = self._events, []
        return events

    def _group_of(self, event):
        return [event.group_idx] if self._by_group else []

    def _numbers_of(self, event):
        return [self._number(block_hash) for block_hash in event.block_hashes]

    def _number(self, block_hash):
        return self._numbers.setdefault(block_hash, len(self._numbers))


class WindowFrees:
    """Notes the blocks that leave the windows of running requests."""

    def __init__(self, managers):
        self._frees = []
        for group, manager in enumerate(managers):
            manager.remove_skipped_blocks = self._noting(group, manager)

    def take(self):
        frees, self._frees = self._frees, []
        return frees

    def _noting(self, group, manager):
        remove = manager.remove_skipped_blocks

        def remove_and_note(request_id, *args, **kwargs):
            before = [block.block_id for block in manager.req_to_blocks.get(request_id, ())]
            remove(request_id, *args, **kwargs)
            after = [block.block_id for block in manager.req_to_blocks.get(request_id, ())]
            freed = [old for old, new in zip(before, after) if old != new]
            if freed:
                self._frees.append([int(request_id), group, freed])

        return remove_and_note
