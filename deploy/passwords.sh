#!/bin/sh
# Prints a random password for each variable that docker-compose.yml needs:
#   (umask 077 && sh deploy/passwords.sh > .env)
set -eu
for name in POSTGRES NATS_NODE NATS_SIDECAR NATS_CLIENT NATS_ANSWERER NATS_OBSERVER; do
  # nats-server reads one that begins with a digit as a number.
  printf '%s_PASSWORD=p%s\n' "$name" "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')"
done
