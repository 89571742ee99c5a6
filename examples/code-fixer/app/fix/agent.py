"""`/fix`: makes failing tests pass. `CODE_FIXER_MODEL=provider:name` gives it a real model; else it replays a recorded run."""

import os
from pathlib import Path

from b4run.agents import Agent, ScriptedChatModel

RECORDED = Path(__file__).parents[2] / "fixtures" / "fix-roman.json"

agent = Agent(
    model=os.environ.get("CODE_FIXER_MODEL") or ScriptedChatModel.load(RECORDED),
    prompt=(
        "You make failing tests pass. The project is in your workspace; load the sample that the user names with load_sample. "
        "Run the tests with `python3 -m unittest`. Correct the code with editFile, never the tests, and run them again before you answer. "
        "Answer in one sentence: what was wrong."
    ),
)
