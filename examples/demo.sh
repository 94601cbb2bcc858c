# Sets KEY and ACCOUNT to the demo's API key and paper account. For any shell, in the folder where `make run` was typed:
#
#     . examples/demo.sh [http://127.0.0.1:8080]

KEY=$(sed 's/.*"api_key": "\(.*\)".*/\1/' "${TRADING_INTENTS_DATA_DIR:-.data}/demo.json")
ACCOUNT=$(curl -s "${1:-http://127.0.0.1:8080}/v1/accounts?limit=1" -H "x-api-key: $KEY" |
  sed -n 's/.*"data":\[{"id":"\([^"]*\)".*/\1/p')
[ -n "$ACCOUNT" ] || echo "No account found at ${1:-http://127.0.0.1:8080}: is the platform running? \`make run\` starts it." >&2
