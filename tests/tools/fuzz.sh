#!/bin/sh
# Fuzz one of the two parsers with clang's libFuzzer, from the kept corpus on:
#
#     sh tests/tools/fuzz.sh core|host SECONDS [FOLDER]
#
# `core` is what a duck does with packets (tests/duckd/fuzz_script.c), `host` what the host does with
# them (tests/transport/fuzz_host.cc). FOLDER (build/fuzz-TARGET) keeps the program, all inputs found,
# and in `found` those that end it; a second run goes on from there. At the end FOLDER/small holds the
# shortest inputs that reach all that was reached: copy it over the corpus folder to keep it. Needs
# clang with its runtime (Debian: clang, libclang-rt-dev) and libbearssl-dev. CLANG names another clang.
set -eu
target=$1
seconds=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${3:-$root/build/fuzz-$target}
clang=${CLANG:-clang}
mkdir -p "$folder/objects" "$folder/inputs" "$folder/found"

flags="-g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -D_GNU_SOURCE"
flags="$flags -I$root/kernels/include -I$root/kernels/wire"
sources="$root/kernels/wire/seal.c $root/kernels/wire/trust.c"
case $target in
core)
    corpus=$root/tests/duckd/corpus
    longest=1500
    flags="$flags -I$root/images/core -I$root/tests/duckd"
    sources="$sources $(ls "$root"/images/core/*.c)"
    for name in fake_platform fake_host fuzz_rules fuzz_script; do
        sources="$sources $root/tests/duckd/$name.c"
    done
    ;;
host)
    corpus=$root/tests/transport/corpus
    longest=2500
    flags="$flags -I$root/host_runtime/transport"
    sources="$sources $(ls "$root"/host_runtime/transport/*.cc)"
    sources="$sources $root/host_runtime/transport/dpdk/frame.cc $root/tests/transport/fuzz_host.cc"
    ;;
*)
    echo "usage: sh tests/tools/fuzz.sh core|host SECONDS [FOLDER]" >&2
    exit 2
    ;;
esac

build='-DDUCK_BUILD_HASH="0123456789012345678901234567890123456789"'
for source in $sources; do
    case $source in
    *.c) language="-xc -std=c11" ;;
    *) language="-xc++ -std=c++17" ;;
    esac
    # Flags are meant to be split into words.
    # shellcheck disable=SC2086
    "$clang" $language $flags "$build" -c "$source" -o "$folder/objects/$(basename "$source").o"
done
"$clang" -fsanitize=fuzzer,address,undefined "$folder"/objects/*.o \
    -l:libbearssl.a -lstdc++ -lm -lpthread -ldl -o "$folder/fuzz"

status=0
"$folder/fuzz" -max_total_time="$seconds" -max_len=8192 -timeout=20 -artifact_prefix="$folder/found/" \
    -print_final_stats=1 "$folder/inputs" "$corpus" || status=$?
rm -rf "$folder/small"
mkdir "$folder/small"
"$folder/fuzz" -merge=1 -max_len=$longest "$folder/small" "$corpus" "$folder/inputs"
exit $status
