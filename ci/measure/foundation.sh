#!/bin/bash
# Measures what later designs lean on: one run, one GPU, about two minutes. Usage: foundation.sh [FOLDER [PART...]]
# Writes FOLDER/log.txt (for people) and FOLDER/results.jsonl (one object per line). Every part is a process of its own with
# a time limit, so one hang loses one part. Parts: env costs channels wake ctxevent mapload rows rates matrix procaddr
# ctxcodes before noctx host device attributes events capture vmm fork ipc deadpeer context livelock hazards sticky; without a
# list, all of them. MEASURE_ONLY picks rows (see measure.h). `codes.py FOLDER/results.jsonl` makes ci/driver-answers.tsv of it.
cd "$(dirname "$0")" || exit 1
out=$(realpath -m "${1:-${OUT:-./out}}"); mkdir -p "$out"; shift
parts=("$@")
export MEASURE_JSON="$out/results.jsonl" PYTHONUNBUFFERED=1
log="$out/log.txt"; bin=$(mktemp -d); work=$(mktemp -d -p "$PWD"); trap 'rm -rf "$bin" "$work"' EXIT
start=$SECONDS
want() { [ ${#parts[@]} -eq 0 ] && return 0; for p in "${parts[@]}"; do [ "$p" = "$1" ] && return 0; done; return 1; }
note() { echo "== $((SECONDS - start))s $*" | tee -a "$log"; }
part() { local name=$1 limit=$2; shift 2; want "$name" || return 0; note "$name"; timeout -k 2 "$limit" "$@" >>"$log" 2>&1; local rc=$?; [ $rc -eq 0 ] || note "$name: exit $rc"; }
has() { command -v "$1" >/dev/null; }

# ---- build (in parallel; the headers and the link stub come with the toolkit, the driver's library from the system)
cuda=${CUDA_HOME:-/usr/local/cuda}; inc=${CUDA_INC:-$cuda/include}
libs=(); for d in "$cuda/lib64/stubs" "$cuda/targets/x86_64-linux/lib/stubs" /usr/local/nvidia/lib64 /usr/lib/x86_64-linux-gnu; do [ -e "$d/libcuda.so" ] && libs+=("-L$d"); done
for d in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do [ -e "$d/libcuda.so.1" ] && export LD_LIBRARY_PATH="$d:$LD_LIBRARY_PATH"; done
cxx=$(command -v g++ || command -v c++ || command -v clang++)
build() { "$cxx" -O1 -std=c++17 -pthread -w -I"$inc" "${@:2}" -o "$bin/$1" "${libs[@]}" -lcuda -ldl >>"$log" 2>&1 || note "build of $1 failed"; }
py=python3
# First touch of memory that the machine never used is slow: touch some and give it back while the compilers run.
$py - <<'P' &
import mmap, threading
def f():
    m = mmap.mmap(-1, 1 << 30)
    for o in range(0, 1 << 30, 4096): m[o] = 1
import multiprocessing as mp
ps = [mp.Process(target=f) for _ in range(8)]
[p.start() for p in ps]; [p.join() for p in ps]
P
warm=$!
builds=(); for s in register procaddr ctxevent costs channels wake deadexporter mapload rows; do build $s $s.cpp & builds+=($!); done
build codes codes.cpp codes2.cpp & builds+=($!)
wait "${builds[@]}" $warm

if want env; then
  note env
  { uname -srm; nproc; grep -m1 'model name' /proc/cpuinfo; grep -E 'MemTotal|HugePages_Total|Hugepagesize' /proc/meminfo; cat /sys/kernel/mm/transparent_hugepage/enabled; df -T . /tmp /dev/shm 2>&1; ulimit -l; cat /proc/sys/kernel/numa_balancing 2>/dev/null; ls /sys/devices/system/node | tr '\n' ' '; echo
    nvidia-smi --query-gpu=name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,compute_mode,persistence_mode --format=csv 2>&1; cat /proc/driver/nvidia/version 2>/dev/null | head -2; "$cxx" --version | head -1; $py -c 'import torch; print("torch", torch.__version__)'; date -u; } 2>&1 | tee -a "$log"
fi

# ---- timings first, one after another, on a quiet machine
part costs 40 "$bin/costs"
part channels 40 "$bin/channels"
want channels && CUDA_DEVICE_MAX_CONNECTIONS=32 part channels 40 "$bin/channels"
part wake 40 "$bin/wake"
part ctxevent 40 "$bin/ctxevent" cost
part mapload 50 "$bin/mapload"
part rows 20 "$bin/rows"
huge=/proc/sys/vm/nr_hugepages; old=$(cat $huge 2>/dev/null); { want rates || want matrix; } && echo 530 >$huge 2>/dev/null
part rates 60 "$bin/register" rates "$work" /dev/shm memfd hugetlb
part matrix 50 "$bin/register" matrix "$work" /dev/shm memfd hugetlb
[ -n "$old" ] && echo "$old" >$huge 2>/dev/null

# ---- result codes: many at a time, each group with its own log so that lines stay together
par() { local name=$1 limit=$2; shift 2; want "$name" || return 0; ( timeout -k 2 "$limit" "$@" >"$bin/$name.log" 2>&1; rc=$?; { echo "== $name: exit $rc after $((SECONDS - start))s"; cat "$bin/$name.log"; } >>"$bin/codes.all"; [ $rc -eq 0 ] || echo "== $name: exit $rc" ) & codes+=($!); }
codes=()
par procaddr 30 "$bin/procaddr"; par ctxcodes 40 "$bin/ctxevent" codes
for g in before noctx host device attributes; do par $g 60 "$bin/codes" $g; done
[ ${#codes[@]} -gt 0 ] && wait "${codes[@]}"; codes=(); note "first code groups done"
for g in events capture vmm fork ipc; do par $g 60 "$bin/codes" $g; done
[ ${#codes[@]} -gt 0 ] && wait "${codes[@]}"; codes=(); note "second code groups done"
par deadpeer 45 "$bin/deadexporter"; par context 60 "$bin/codes" context
[ ${#codes[@]} -gt 0 ] && wait "${codes[@]}"; codes=(); note "peers and contexts done"
par livelock 30 "$bin/register" livelock "$work" /dev/shm; par hazards 60 "$bin/register" hazards "$work" /dev/shm; par sticky 45 "$bin/codes" sticky
[ ${#codes[@]} -gt 0 ] && wait "${codes[@]}"
[ -e "$bin/codes.all" ] && cat "$bin/codes.all" >>"$log"
note "done; $(wc -l <"$MEASURE_JSON") rows"
