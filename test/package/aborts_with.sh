#!/bin/bash
# aborts_with.sh PROGRAM LINE: the program must print exactly this line and abort.
ulimit -c 0
output=$("$1" 2>&1)
status=$?
printf '%s\n' "$output" "exit status $status"
[ "$status" -eq 134 ] && [ "$output" = "$2" ]
