"""Which place in the store a checkpoint gets, and who is woken when URLs have come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from seerd.agent.presigned_urls import PresignedUrls, PresignedUrlsByAttempt
from seerd.agent.protocol import Ask, Grant, Parts, Slot


def slot(name: str) -> Slot:
    return Slot(name, f"data {name}", f"manifest {name}")


def granted(*names: str, gets: tuple[str, ...] = ()) -> Grant:
    return Grant("t1", 1, [*map(slot, names)], [*map(slot, gets)])


def urls_of(grant: Grant | None = None, say: Callable[[Ask], bool] = lambda ask: False):
    urls = PresignedUrls("t1", 1, say)
    if grant is not None:
        urls.take(grant)
    return urls


def placed(urls: PresignedUrls) -> str | None:
    place = urls.place()
    if place is None:
        return None
    urls.try_it(place)
    return place.name


def test_one_place_is_kept_back_for_the_last_checkpoint() -> None:
    urls = urls_of(granted("a", "b", "c"))
    assert [placed(urls), placed(urls)] == ["a", "b"]
    urls.is_full(slot("a"))
    urls.is_full(slot("b"))
    assert placed(urls) is None
    urls.last_call()
    assert placed(urls) == "c"


def test_the_only_place_of_a_grant_is_not_kept_back() -> None:
    assert placed(urls_of(granted("a"))) == "a"


def test_a_place_is_tried_again_where_no_fresh_one_is_left_the_longest_untried_first() -> None:
    urls = urls_of(granted("a", "b", "c"))
    urls.last_call()
    assert [placed(urls) for _ in range(7)] == ["a", "b", "c", "a", "b", "c", "a"]
    urls.is_full(slot("b"))
    assert [placed(urls) for _ in range(3)] == ["c", "a", "c"]


def test_a_refused_url_ends_its_grant_and_the_next_one_begins_anew() -> None:
    urls = urls_of(granted("a", "b", gets=("old",)))
    placed(urls)
    urls.is_refused(slot("a"))
    assert placed(urls) is None
    urls.take(granted("a", "b", "c"))
    assert placed(urls) == "a"  # nothing has arrived there
    urls.is_refused(slot("old"))
    assert urls.source("old", 0.0) is None
    assert placed(urls) == "b"  # what was refused was no place of this grant


def test_nothing_is_placed_before_a_grant_nor_after_the_end() -> None:
    urls = urls_of()
    assert placed(urls) is None
    urls.take(granted("a"))
    urls.close()
    assert placed(urls) is None


def waits(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_who_waits_for_a_checkpoint_goes_on_as_soon_as_it_is_granted_or_all_is_over() -> None:
    urls, far = urls_of(), time.monotonic() + 60
    thread, results = waits(lambda: urls.source("old", far))
    urls.take(granted("a", gets=("old",)))
    thread.join(5)
    assert results == [slot("old")]
    thread, results = waits(lambda: urls.source("another", far))
    urls.close()
    thread.join(5)
    assert results == [None]


def test_an_answer_about_parts_counts_for_the_place_that_was_asked_about() -> None:
    def answer(ask: Ask) -> bool:
        asked.append(urls.asked)
        urls.take(Parts("t1", 1, "another", 5, ["u"], "", ""))
        threading.Timer(0.01, urls.take, [Parts("t1", 1, ask.name, 5, parts, "", "")]).start()
        return True

    asked: list[Ask | None] = []
    parts = ["u1", "u2"]
    urls = urls_of(say=answer)
    found = urls.parts(slot("a"), 10)
    assert found is not None
    assert (found.name, found.urls) == ("a", parts)
    assert asked == [Ask("t1", 1, "a", 10)]
    assert urls.asked is None
    parts = []
    assert urls.parts(slot("a"), 10) is None
    assert urls_of().parts(slot("a"), 10) is None  # no daemon is connected


def test_an_attempt_that_is_over_is_forgotten_with_those_before_it() -> None:
    all_urls = PresignedUrlsByAttempt(lambda ask: False)
    urls = {number: all_urls.of("t1", number) for number in (1, 2, 3)}
    other = all_urls.of("t2", 1)
    assert all_urls.of("t1", 1) is urls[1]
    all_urls.take(granted("a"))
    assert placed(urls[1]) == "a"
    assert placed(urls[2]) is None
    all_urls.forget("t1", 2)
    assert all_urls.of("t1", 1) is not urls[1]
    assert all_urls.of("t1", 2) is not urls[2]
    assert all_urls.of("t1", 3) is urls[3]
    assert all_urls.of("t2", 1) is other
    urls[1].take(granted("a"))
    assert placed(urls[1]) is None


def test_questions_without_an_answer_are_known_as_long_as_they_wait() -> None:
    def say(ask: Ask) -> bool:
        asks.append(all_urls.asks)
        return False

    asks: list[list[Ask]] = []
    all_urls = PresignedUrlsByAttempt(say)
    all_urls.of("t2", 1)
    all_urls.of("t1", 1).parts(slot("a"), 10)
    assert asks == [[Ask("t1", 1, "a", 10)]]
    assert all_urls.asks == []
