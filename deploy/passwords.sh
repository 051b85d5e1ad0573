#!/bin/sh
# Creates the passwords for docker-compose.yml, each in a file: `sh deploy/passwords.sh [FOLDER]`, `deploy/secrets` by default.
# It overwrites nothing, and adds what an earlier version did not make. Containers read the files as different users, so the files are readable for all and the folder is not.
set -eu
folder=${1:-$(dirname "$0")/secrets}
# A password begins with a letter, because nats-server reads one that begins with a digit as a number.
password() { printf 'p%s' "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"; }
keep() { printf '%s\n' "$2" >"$folder/$1"; }
keep_role() { # prints the line for nats-server
  made=$(password)
  keep "nats_$1_url" "nats://$1:$made@nats:4222"
  echo "NATS_$(echo "$1" | tr a-z A-Z)_PASSWORD=$made"
}

if [ -e "$folder/nats_passwords" ]; then
  if grep -q NATS_PROVE_PASSWORD "$folder/nats_passwords"; then
    echo "passwords.sh: $folder has passwords already; to make new ones, remove it together with the volumes that use the old ones" >&2
    exit 1
  fi
  umask 022
  keep_role prove >>"$folder/nats_passwords"
  echo "passwords.sh: added the user of \`planck prove\` to $folder; \`docker-compose up -d nats\` starts NATS with it"
  exit
fi
umask 077
mkdir -p "$folder"
chmod 700 "$folder"
umask 022
mkdir -p "$folder/keys" # the keys of providers, one file each

postgres=$(password)
keep postgres_password "$postgres"
keep database_url "postgres://planck:$postgres@postgres/planck"
passwords=$(for role in node sidecar client answerer observer prove; do keep_role "$role"; done)
# The key of the console and of other callers of the front, which is configured with the hash only.
key=pk_$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
hash=$(printf '%s' "$key" | sha256sum | cut -d ' ' -f 1)
keep http_key "$key"
keep http_keys "[{\"name\":\"operator\",\"hash\":\"$hash\",\"role\":\"operate\"}]"
printf '%s\n' "$passwords" >"$folder/nats_passwords"
