"""``aiokcc period``, ``hold`` and ``release`` as a user runs them, on a real ZooKeeper."""

from __future__ import annotations

from tests.integration.cli.commands import (
    MINUTE,
    group_of,
    on_terminal,
    run,
    waiting,
)


class TestControl:
    async def test_a_hold_prints_the_command_that_ends_it(self, zk_root: str) -> None:
        async with group_of(zk_root, period="90s") as group:
            held = await run("hold", zk_root)
            again = await run("hold", AIOKCC_STORE=zk_root)
            shown = await run("status", zk_root)
            async with waiting(group.orders, 10 * MINUTE), waiting(group.payments, 10 * MINUTE) as passed:
                command = next(line.strip() for line in held.out.splitlines() if "aiokcc period" in line)
                assert group.alpha.limit == 90_000
                gone_on = await run(*command.split()[1:])
                await passed
        assert held.out.startswith("Held: the limit stays at 1970-01-01T00:01:30Z.")
        assert command == f"aiokcc period {zk_root} 1m30s"
        assert again.out.startswith("Held already")
        assert "    aiokcc period 1m30s\n" in again.out
        assert shown.code == 0
        assert f"resume with: {command}" in shown.out
        assert gone_on.out == "The hold is over: the limit moves again, by 1m30s at a time.\n"

    async def test_a_period_that_was_changed_before_the_hold_is_not_confused_with_the_first_one(
        self, zk_root: str
    ) -> None:
        async with group_of(zk_root):
            await run("period", "2m", zk_root)
            held = await run("hold", zk_root)
            again = await run("hold", zk_root)
            shown = await run("status", zk_root)
        assert f"    aiokcc period {zk_root} 2m\n" in held.out
        assert "The period before the hold is not recorded; the run began with 1m." in again.out
        for later in (again, shown):
            assert f"aiokcc period {zk_root} PERIOD\n" in later.out
        assert "not recorded before the hold; the run began with 1m" in shown.out

    async def test_the_period_changes_while_the_group_runs(self, zk_root: str) -> None:
        async with group_of(zk_root) as group:
            changed = await run("period", "5m", AIOKCC_STORE=zk_root)
            same = await run("period", "5m", "--store", zk_root)
            async with waiting(group.orders, MINUTE), waiting(group.payments, MINUTE) as passed:
                await passed
            assert group.payments.limit == 5 * MINUTE
        assert changed.out == "The period is 5m from the next boundary on (before: 1m).\n"
        assert same.out == "The period is 5m already; nothing was changed.\n"

    async def test_a_request_to_a_group_without_members_is_left_for_the_next_leader(self, zk_root: str) -> None:
        async with group_of(zk_root):
            pass
        ended = await run("period", "5m", zk_root)
        assert ended.code == 0
        assert "The group has no members at present" in ended.out

    async def test_release_is_final(self, zk_root: str) -> None:
        async with group_of(zk_root) as group, waiting(group.orders, 10**12) as passed:
            unsure = await run("release", zk_root)
            assert not passed.done()
            released = await run("release", "--yes", zk_root)
            await passed
            again = await run("release", "--yes", zk_root)
            refused = await run("hold", zk_root)
            shown = await run("status", zk_root)
        assert unsure.code == 2
        assert (released.code, released.out) == (0, "Released: every record passes from now on.\n")
        assert (again.code, again.out) == (0, "Released already; nothing was changed.\n")
        assert refused.code == 1
        assert "final" in refused.err
        assert "Released: every record passes" in shown.out

    async def test_release_asks_on_a_terminal(self, zk_root: str) -> None:
        async with group_of(zk_root) as group:
            async with on_terminal("release", zk_root) as terminal:
                await terminal.shows("Release? [y/N]")
                terminal.type("\n")
                await terminal.shows("Nothing was changed.")
                assert await terminal.process.wait() == 1
            assert not group.alpha.released
            async with on_terminal("release", zk_root) as terminal:
                await terminal.shows("Release? [y/N]")
                terminal.type("yes\n")
                await terminal.shows("Released:")
                assert await terminal.process.wait() == 0
