#!/usr/bin/env bash
# Builds the local cluster's programs and images on first use (minutes) and prints their folder. PYTHON is the interpreter.
exec "${PYTHON:-python3}" "$(dirname "$0")/../e2e/cluster" build
