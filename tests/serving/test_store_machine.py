"""The store against a plain model of it: any order of puts, finds, waits, evictions, damage and reopening."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_made import LAYOUT, PAGE, Clock, made_pages, open_store, put, read_right

from ds41.serving.store import MissingPrefix, StoreFull

# Uses are noted once in a thousandth of the guarantee. All moments are exact in binary, and so are their sums.
GUARANTEED, EXPIRES, GRAIN = 125.0, 250.0, 0.125
TENANTS = st.sampled_from(["a", "b", None])
# Few different ids, so that conversations share pages, parts of pages and nothing.
IDS = st.lists(st.integers(0, 1), max_size=5).flatmap(
    lambda runs: st.integers(0, 3 * PAGE).map(lambda n: tuple(t for t in runs for _ in range(PAGE // 2))[:n])
)


class StoreMachine(RuleBasedStateMachine):
    """What is stored by tenant and ids up to the end of each page, whole or partial, and when it was used.

    ``used`` is when at least, ``latest`` when at most: a hit that ends inside a page uses all of it, and of several
    pages that begin alike one. The model forgets nothing. The store may forget a page once its guarantee is over and
    has to once it has expired, so what it finds lies between the two. It notes a use to the grain, which may lengthen
    both lifetimes by as much and shortens neither.
    """

    @initialize(tight=st.booleans())
    def start(self, tight):
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.budget = 60_000 + 6 * 4096 if tight else 2**40
        self.used: dict[tuple, float] = {}
        self.latest: dict[tuple, float] = {}
        self.open: list = []
        self.store = self.other = None
        self.reopen()

    def teardown(self):
        if hasattr(self, "folder"):
            self.close_all()
            shutil.rmtree(self.folder)

    @rule(tenant=TENANTS, ids=IDS)
    def put(self, tenant, ids):
        before = self.store.usage()
        try:
            stored = put(self.store, ids, tenant)
        except StoreFull:
            assert self.store.usage() == before
            return
        assert stored.tokens == len(ids)
        self.use(tenant, ids)
        assert self.find(tenant, ids) == len(ids)

    @rule(tenant=TENANTS, ids=IDS)
    def grow(self, tenant, ids):
        # Turns in quick succession: the pages before the newest were noted a moment ago and are not noted again.
        for end in range(PAGE, len(ids) + PAGE, PAGE):
            self.put(tenant, ids[:end])
            self.clock.now += GRAIN / 4

    @rule(tenant=TENANTS, ids=IDS, more=IDS)
    def put_the_rest(self, tenant, ids, more):
        with self.store.find(tenant, ids) as prefix:
            tokens = prefix.tokens
        self.use(tenant, ids[:tokens])
        ids, first = ids[:tokens] + more, tokens // PAGE
        try:
            self.store.put(tenant, ids, made_pages(ids, first=first), first)
        except StoreFull:
            return
        except MissingPrefix:
            raise AssertionError("what was just found cannot be missing") from None
        self.use(tenant, ids)
        assert self.find(tenant, ids) == len(ids)

    @rule(tenant=TENANTS, ids=IDS)
    def look(self, tenant, ids):
        self.find(tenant, ids)

    @rule(tenant=TENANTS, ids=IDS)
    def keep_open(self, tenant, ids):
        prefix = self.other.find(tenant, ids)
        self.use(tenant, ids[: prefix.tokens])
        self.open.append((prefix, ids, self.clock.now))

    @precondition(lambda self: self.open)
    @rule()
    def read_what_is_open(self):
        prefix, ids, found_at = self.open.pop()
        tokens = prefix.tokens
        read_right(prefix, ids)
        if self.clock.now < found_at + EXPIRES:
            assert prefix.tokens == tokens, "a pinned page was evicted"
        else:
            assert prefix.tokens == 0
        prefix.close()

    @rule(seconds=st.sampled_from([GRAIN / 2, GRAIN, 1.0, GUARANTEED / 2, GUARANTEED, EXPIRES]))
    def wait(self, seconds):
        self.clock.now += seconds

    @rule()
    def evict(self):
        self.store.evict(0)
        # What is left is inside its guarantee as it was noted, in use, or before such a page.
        open_pages = sum(LAYOUT.pages_for(prefix.tokens) for prefix, _, _ in self.open)
        staying = [page for page, used in self.latest.items() if used + GUARANTEED + GRAIN > self.clock.now]
        assert self.store.usage().pages <= len(staying) + open_pages

    @rule()
    def evict_by_the_other(self):
        self.other.evict(0)

    @rule()
    def reopen(self):
        self.close_all()
        options = {"budget_bytes": self.budget, "guaranteed_s": GUARANTEED, "expires_s": EXPIRES, "clock": self.clock}
        self.store, self.other = open_store(self.folder, **options), open_store(self.folder, **options)
        assert self.store.grain_s == GRAIN

    @invariant()
    def files_are_counted(self):
        if hasattr(self, "folder"):
            usage = self.store.usage()
            assert usage.file_bytes == self.store.files.disk_bytes()
            assert usage.held_bytes <= usage.budget_bytes

    def close_all(self):
        for prefix, _, _ in self.open:
            prefix.close()
        self.open = []
        for store in (self.store, self.other):
            if store is not None:
                assert store.verify()[1:] == (0, 0)
                assert store.counters["damaged_pages"] == 0
                store.close()

    def use(self, tenant, ids):
        """Count as used all pages that ``ids`` fill, the last of them perhaps in part."""
        for end in range(PAGE, len(ids) + PAGE, PAGE):
            self.used[tenant, ids[:end]] = self.latest[tenant, ids[:end]] = self.clock.now
        for owner, page in self.latest:
            same_page = LAYOUT.pages_for(len(page)) == LAYOUT.pages_for(len(ids))
            if owner == tenant and same_page and page[: len(ids)] == ids:
                self.latest[owner, page] = self.clock.now

    def find(self, tenant, ids):
        """Look ids up and hold the answer against the model."""
        least = self.known(tenant, ids, self.used, GUARANTEED)
        most = self.known(tenant, ids, self.latest, EXPIRES + GRAIN)
        with self.store.find(tenant, ids) as prefix:
            tokens = prefix.tokens
            assert least <= tokens <= most
            read_right(prefix, ids)
            assert prefix.tokens == tokens
        self.use(tenant, ids[:tokens])
        return tokens

    def known(self, tenant, ids, uses, lifetime):
        """How many of ``ids`` some page used less than ``lifetime`` ago begins with."""
        known = 0
        for (owner, page), used in uses.items():
            if owner == tenant and used + lifetime > self.clock.now:
                same = [a == b for a, b in zip(page, ids, strict=False)]
                known = max(known, [*same, False].index(False))
        return known


StoreMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestStore = StoreMachine.TestCase
