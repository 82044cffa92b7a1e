"""Mistakes in what happens to checkpoints: beside the trials, in the stores, on the training
side.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TRANSFER = "tests/agent/test_agent_transfer.py"
REMOTE = "tests/agent/test_agent_s3_transfer.py"
STORES = "tests/contracts/test_store_contract.py"
S3 = "tests/shell/test_s3_store.py"
MEAN = "tests/test_trial.py::test_checkpoints_have_the_mean_of_the_last_reports_over_all_attempts"
FULL_STORE = (
    "tests/test_full_store.py::test_what_a_store_has_no_room_for_is_handed_back_later[read-only]"
)
SERVE = "tests/agent/test_agent_s3_serve.py"
OUTAGE = "tests/core/test_store_outage.py"
GROWING = f"{OUTAGE}::test_it_is_said_at_once_and_again_in_growing_intervals_and_ends_the_run"
LEFT = "tests/shell/test_left_behind.py"
SAVES = "tests/test_saves.py"
SHARDED = "tests/test_sharded_saves.py"
DAMAGED = "tests/test_trial.py::test_a_damaged_newest_checkpoint_falls_back_to_the_one_before"

KEEPING = (
    Mutant(
        "progress goes back when the end comes later than it seemed",
        "how far a training is never goes back",
        "Horizon.look",
        "max(self.progress, min(1.0, max(by_time, by_reports)))",
        "min(1.0, max(by_time, by_reports))",
        (
            "tests/test_trial.py::test_progress_does_not_go_back_when_the_end_comes_later_than_it_seemed",
        ),
    ),
    Mutant(
        "only the newest two checkpoints stay in a directory",
        "the best model that was confirmed is handed back",
        "manifest.needed",
        "{*list(worths)[-KEPT:], *([] if best is None else [best])}",
        "{*list(worths)[-KEPT:]}",
        (f"{TRANSFER}::test_the_best_stays_beside_the_newest_two",),
    ),
    Mutant(
        "the newest checkpoint is always stored next",
        "the best model that was confirmed is handed back",
        "TrialOutput._next",
        "return best",
        "return newest",
        (
            "tests/agent/test_agent_trial_output.py::test_a_better_checkpoint_is_stored_before_the_newest_and_what_was_overtaken_is_not",
        ),
    ),
    Mutant(
        "models are compared by their last report, however many are to count",
        "the model whose last reports have the best mean is handed back",
        "Trial.report",
        "aggregate(self._recent)",
        "metrics[attempt.metric]",
        (MEAN,),
    ),
    Mutant(
        "an attempt forgets the reports of the one before",
        "the model whose last reports have the best mean is handed back",
        "Trial._restore",
        'payload.get("recent", [])',
        "[]",
        (MEAN,),
    ),
    Mutant(
        "the core needs only the newest two checkpoints",
        "the best model that was confirmed is handed back",
        "settle._checkpoints",
        "best.name if best is not None and best in older else None",
        "None",
        (
            "tests/core/test_run.py::test_the_best_checkpoint_is_kept_beside_the_newest_two_and_handed_back",
        ),
    ),
    Mutant(
        "the manifest is put into the directory first",
        "a checkpoint exists when all of it does",
        "_transfer",
        '_copy(source / f"{name}.pt", to / f"{name}.pt", manifest, go_on)\n'
        'write_named(to / f"{name}.json", small_file(source / f"{name}.json"))',
        'write_named(to / f"{name}.json", small_file(source / f"{name}.json"))\n'
        '_copy(source / f"{name}.pt", to / f"{name}.pt", manifest, go_on)',
        (f"{TRANSFER}::test_a_checkpoint_that_is_not_what_its_manifest_says_is_not_stored",),
    ),
    Mutant(
        "bytes are fetched and stored without their checksum",
        "a damaged checkpoint is not one",
        "transfer._copy",
        "part.stat().st_size != manifest.size or checksum(part, go_on) != manifest.sha256",
        "part.stat().st_size != manifest.size",
        (f"{TRANSFER}::test_a_damaged_newest_falls_back_to_the_one_before",),
    ),
    Mutant(
        "a damaged copy from before is restored",
        "a damaged checkpoint is not one",
        "transfer.good",
        'checksum(folder / f"{name}.pt") == manifest.sha256',
        '(folder / f"{name}.pt").exists() and bool(manifest)',
        (f"{TRANSFER}::test_a_good_local_copy_spares_the_fetch_and_a_damaged_one_does_not",),
    ),
    Mutant(
        "the only good checkpoint is removed for a new one",
        "a confirmed checkpoint stays",
        "Directory.put",
        "set(worths) - needed(worths) - {name}",
        "set(worths)",
        (f"{TRANSFER}::test_the_store_keeps_the_newest_two_once_a_new_one_is_whole",),
    ),
    Mutant(
        "the manifest is put into S3 first",
        "a checkpoint exists when all of it does",
        "RemoteStore.put",
        "upload(self._wires, self._urls, slot, whole, md5)\n"
        "self._wires.insist(lambda: self._wires.put(slot.manifest_url, raw))",
        "self._wires.insist(lambda: self._wires.put(slot.manifest_url, raw))\n"
        "upload(self._wires, self._urls, slot, whole, md5)",
        (f"{REMOTE}::test_the_manifest_is_put_last_and_has_the_trials_own_name",),
    ),
    Mutant(
        "what comes from S3 is not compared with its checksum",
        "a damaged checkpoint is not one",
        "RemoteStore._fetch_one",
        "checksum(part) != manifest.sha256",
        "not checksum(part)",
        (f"{REMOTE}::test_damage_on_the_way_is_seen",),
    ),
    Mutant(
        "a store out of reach is an empty one",
        "a trial does not begin anew because the network is down",
        "RemoteStore.fetch",
        "if unreachable:\n    raise StoreUnreachableError(unreachable)",
        "",
        (f"{REMOTE}::test_a_store_that_cannot_be_reached_is_not_an_empty_one",),
    ),
    Mutant(
        "the result is copied without its checksum",
        "the model that is handed back is the one that was confirmed",
        "_copy_checked",
        "found != sha256",
        "not found",
        (f"{STORES}::test_the_daemon_takes_nothing_but_what_was_confirmed",),
    ),
    Mutant(
        "the result is fetched from S3 without its checksum",
        "the model that is handed back is the one that was confirmed",
        "S3Store.fetch",
        "digest != sha256",
        "not sha256",
        (f"{STORES}::test_the_daemon_takes_nothing_but_what_was_confirmed",),
    ),
    Mutant(
        "a presigned URL lives as long as S3 allows",
        "a URL expires with its run",
        "S3Store._signed",
        "client.generate_presigned_url(operation, Params=params, ExpiresIn=lifetime_s)",
        "client.generate_presigned_url(operation, Params=params, ExpiresIn=LONGEST_S)",
        (f"{S3}::test_a_url_expires_after_the_run",),
    ),
    Mutant(
        "a place to restore from can be written",
        "a URL is good for one method on one object",
        "S3Store.presign",
        'self._slot("get_object", trial, name)',
        'self._slot("put_object", trial, name)',
        (f"{S3}::test_a_url_is_good_for_one_method_on_one_object",),
    ),
    Mutant(
        "all places of a trial are one",
        "a place is granted for one checkpoint",
        "S3Store.presign",
        "[slot_name(attempt, number) for number in range(first, first + SLOTS)]",
        "[slot_name(attempt, first) for _ in range(SLOTS)]",
        (f"{S3}::test_a_grant_names_the_next_places_in_order",),
    ),
    Mutant(
        "tidying up removes what is just arriving",
        "a stored checkpoint is never lost",
        "S3Store.keep",
        "newest is None or by_number(name) < newest",
        "True",
        (f"{S3}::test_only_what_is_needed_is_kept_and_what_may_be_on_its_way_is_left_alone",),
    ),
    Mutant(
        "tidying up removes bytes before their manifest",
        "a checkpoint exists when all of it does",
        "S3Store.keep",
        '(".json", ".pt")',
        '(".pt", ".json")',
        (f"{S3}::test_manifests_are_removed_before_bytes",),
    ),
    Mutant(
        "a checkpoint may run code when it is loaded",
        "loading a checkpoint runs no code",
        "checkpoints.load",
        'torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)',
        'torch.load(str(path), map_location="cpu", weights_only=False, mmap=True)',
        (f"{DAMAGED}[pickle with its checksum]",),
    ),
    Mutant(
        "a trial restores what does not have its checksum",
        "a damaged checkpoint is not one",
        "checkpoints.is_whole",
        'plainfile.copied(file) == (manifest["size"], manifest["sha256"])',
        'plainfile.copied(file)[0] == manifest["size"]',
        (f"{DAMAGED}[flipped]",),
    ),
    Mutant(
        "a trial names its checkpoint before the bytes are there",
        "a checkpoint exists when all of it does",
        "checkpoints._whole",
        'path.with_name(f".{path.name}")',
        "path",
        (
            "tests/test_trial.py::test_a_checkpoint_is_named_once_its_bytes_are_on_the_disk_and_its_manifest_is_last",
        ),
    ),
    Mutant(
        "a better model waits until the disk is free",
        "the state of the best report is saved, but for a kill",
        "Trial._should_save",
        "return True",
        "return saver.is_idle",
        (f"{SAVES}::test_training_goes_on_while_a_state_is_written_and_the_best_since_waits",),
    ),
    Mutant(
        "what is written is what is trained on meanwhile",
        "a checkpoint is of one moment",
        "HostCopy._copied",
        "to.copy_(of, non_blocking=True).untyped_storage()",
        "storage",
        (f"{SAVES}::test_training_goes_on_while_a_state_is_written_and_the_best_since_waits",),
    ),
    Mutant(
        "nobody is told that host memory is too short for a copy",
        "a run says where not every best model is saved",
        "Saver._tell_short",
        'self._attempt.tell("warning", why=SHORT)',
        "pass",
        (f"{SAVES}::test_where_memory_is_short_a_state_is_written_at_once_and_that_is_told_once",),
    ),
    Mutant(
        "a rank that could not write its parts counts as done",
        "a checkpoint exists when all of it does",
        "PartWriter._carry_out",
        "return 0, repr(error)",
        "return sum(shard.part.nbytes for shard in self._held[slot]), None",
        (f"{SHARDED}::test_a_part_that_cannot_be_written_fails_the_trial_and_publishes_nothing",),
    ),
    Mutant(
        "a trial that leaves does not wait for what is written",
        "the state of the best report is saved, but for a kill",
        "Saver.settle",
        "thread.join()",
        "pass",
        (f"{SAVES}::test_a_script_that_crashes_has_written_the_best_state_that_was_copied",),
    ),
    Mutant(
        "a state that was trained on has the metric of the report before",
        "the model that is handed back is the one that was reported",
        "Trial._described",
        "metrics[self._attempt.metric] = None",
        "pass",
        (f"{SAVES}::test_a_state_that_was_trained_on_after_a_report_does_not_have_its_metric",),
    ),
    Mutant(
        "that nothing can be stored is said once",
        "the user is warned again and again while nothing can be stored",
        "outage_warning",
        "last_s is not None and state.now < last_s + pause_s",
        "last_s is not None",
        (GROWING,),
    ),
    Mutant(
        "a run goes on though nothing can be stored",
        "a run ends in order when its store has taken nothing for a tenth of the deadline",
        "decide._run_on",
        "ending is None and unstored",
        "False",
        (GROWING,),
    ),
    Mutant(
        "a checkpoint that is stored does not end an outage",
        "a run ends in order when its store has taken nothing for a tenth of the deadline",
        "progress.checkpointed",
        "state.signs.outage = None",
        "pass",
        (f"{OUTAGE}::test_one_that_is_stored_ends_it_and_only_what_fails_now_begins_it_anew",),
    ),
    Mutant(
        "a model that only a machine has goes with the machine",
        "the best model that could not be stored is fetched from its machine",
        "reconcile._termination",
        "left_on(state, instance.id)",
        "()",
        (f"{OUTAGE}::test_the_better_models_that_only_a_machine_has_are_fetched_before_it_goes",),
    ),
    Mutant(
        "a fetched model is not put into the store",
        "the best model that could not be stored is put into the store from the coordinator",
        "LeftBehind.keep",
        "grant is not None",
        "False",
        (f"{LEFT}::test_one_that_is_stored_from_here_is_in_the_store_alone",),
    ),
    Mutant(
        "a fetched model is looked for in the store alone",
        "a fetched model that cannot be stored is handed back from the run's folder",
        "LeftBehind.store_of",
        "DirectoryStore(self.folder) if kept else self.store",
        "self.store",
        (f"{LEFT}::test_one_that_cannot_be_stored_either_is_handed_back_from_here",),
    ),
    Mutant(
        "a checkpoint that the store did not take is dropped",
        "a checkpoint that the store does not take is stored once it takes it",
        "RemoteStore.put",
        "error.status in (TOO_SHORT, TOO_LARGE)",
        "True",
        (f"{SERVE}::test_a_store_that_takes_nothing_is_told_and_gets_what_waits_once_it_takes_it",),
    ),
    Mutant(
        "a better model that the store had no room for is forgotten",
        "what a store has no room for is handed back once there is room",
        "runs.runs._resume",
        "unstored.store(folder, state, better)",
        "()",
        (FULL_STORE,),
    ),
    Mutant(
        "nobody says that a better model could not be stored",
        "the end of a run names the better model that its store had no room for",
        "commands.run._follow",
        "unstored.note(folder, ended.state)",
        "()",
        (FULL_STORE,),
    ),
)
