"""Mistakes in what leaves this machine, who reads it, and what is made of it for people to see."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SOURCE = "tests/shell/test_source_copy.py"
OUT = f"{SOURCE}::test_links_that_lead_out_are_refused_all_at_once"
WEB = "tests/agent/test_agent_web.py"
INBOX = "tests/shell/test_inbox.py"
SHOWN = "tests/test_nothing_obeyed.py"
FOLDERS = "tests/shell/test_run_folders.py"

LEAVING = (
    Mutant(
        "links that lead out of the source are followed unasked",
        "nothing leaves this machine that the spec does not name",
        "_SourceCopy._look_at",
        "is_out and not self._is_followed(name, entry.path)",
        "is_out and not self._terms.elsewhere and not self._is_followed(name, entry.path)",
        (OUT,),
    ),
    Mutant(
        "a followed link opens whatever links are in its folder",
        "a link inside a followed folder is followed only by its own name",
        "_SourceCopy._leads_out",
        "not any(_is_within(target, folder) for folder in self._inside)",
        "not self._inside",
        (f"{SOURCE}::test_a_followed_folder_opens_no_other_one",),
    ),
    Mutant(
        "a pattern of followed links reaches into folders",
        "nothing leaves this machine that the spec does not name",
        "_SourceCopy._is_followed",
        'name.count("/") == pattern.count("/")',
        "True",
        (f"{SOURCE}::test_a_pattern_of_links_stays_in_its_folder",),
    ),
    Mutant(
        "links in a circle are left out without a word",
        "what is not copied is named",
        "_SourceCopy.check_links",
        'self._terms.say(f"links lead in a circle and are left out of the copy: {_some(self._circles)}")',
        "pass",
        (f"{SOURCE}::test_listed_links_are_followed_for_other_machines_but_not_in_circles",),
    ),
    Mutant(
        "a link hides that its folder holds secrets",
        "files that usually hold secrets are named before they leave this machine",
        "holds_secrets",
        'SECRET_PLACES.search("/".join(Path(path).parts[-3:]))',
        "False",
        (f"{SOURCE}::test_secrets_that_leave_this_machine_are_a_doubt",),
    ),
    Mutant(
        "an error of a transfer repeats what an invalid URL says of itself",
        "a presigned URL is in no file, log or message",
        "web._why",
        "return type(error).__name__",
        "return str(error)",
        (WEB,),
    ),
    Mutant(
        "an error of a transfer names the whole URL",
        "a presigned URL is in no file, log or message",
        "web._named",
        "urlsplit(url).hostname",
        "url",
        (WEB,),
    ),
    Mutant(
        "a request is written in place",
        "a request appears whole or not at all",
        "Inbox.put",
        """part = self.path / f".{name}"
part.write_bytes(msgspec.json.encode(request))
part.replace(self._request(name))""",
        "self._request(name).write_bytes(msgspec.json.encode(request))",
        (INBOX,),
    ),
    Mutant(
        "an answer is written in place",
        "an answer appears whole or not at all",
        "Inbox.answer",
        """part = self.path / f".{name}.reply"
part.write_bytes(msgspec.json.encode(reply))
part.replace(self._reply(name))""",
        "self._reply(name).write_bytes(msgspec.json.encode(reply))",
        (INBOX,),
    ),
    Mutant(
        "a run folder that everybody reads",
        "only the user reads a run",
        "Home.new",
        "folder.path.mkdir(mode=0o700, parents=True)",
        "folder.path.mkdir(parents=True)",
        (FOLDERS,),
    ),
    Mutant(
        "requests that everybody reads",
        "only the user reads a run",
        "Inbox.put",
        "self.path.mkdir(mode=0o700, exist_ok=True)",
        "self.path.mkdir(exist_ok=True)",
        (FOLDERS,),
    ),
    Mutant(
        "pictures are drawn with control characters",
        "nothing that outsiders write ends a renderer",
        "_drawable",
        "text = printable(text)",
        "",
        (f"{SHOWN}::test_a_report_is_drawn",),
    ),
    Mutant(
        "tables have what a terminal obeys",
        "a terminal obeys nothing that outsiders write",
        "Harmless.__rich_console__",
        'c.isprintable() or c == "\\n"',
        "True",
        (f"{SHOWN}::test_a_terminal_obeys_nothing",),
    ),
    Mutant(
        "lines have what a terminal obeys",
        "a terminal obeys nothing that outsiders write",
        "harmless.printable",
        "text.isprintable()",
        "text",
        (f"{SHOWN}::test_a_terminal_obeys_nothing",),
    ),
    Mutant(
        "a spreadsheet computes what a choice says",
        "no cell of a table is a formula",
        "rows._text_of",
        "cell.startswith(FORMULA)",
        "False",
        (f"{SHOWN}::test_a_cell_is_no_formula",),
    ),
    Mutant(
        "a negative number is written as a text",
        "numbers stay numbers",
        "rows._text_of",
        "float(cell)",
        'raise ValueError("a text")',
        (f"{SHOWN}::test_a_cell_is_no_formula",),
    ),
    Mutant(
        "a metric's name may have control characters",
        "what a spec names can be shown as it is",
        "printed_name",
        "not text(value).isprintable()",
        "False",
        (f"{SHOWN}::test_a_spec_names_nothing_by_control_characters",),
    ),
)
