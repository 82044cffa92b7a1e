#!/bin/sh
# Posts what has become of a run to a Slack webhook: SLACK_WEBHOOK=https://hooks.slack.com/services/...
python3 -c 'import json, os; print(json.dumps({"text": os.environ["SEERD_TEXT"]}))' |
    curl --fail --silent --show-error --max-time 30 \
        --header 'Content-Type: application/json' --data @- "$SLACK_WEBHOOK"
