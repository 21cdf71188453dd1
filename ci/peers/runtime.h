// What the peers use of the CUDA runtime.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>
#include <vector>

// Throws when the runtime refuses.
inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(code));
}

// A stream for each thread, made once: allocators remember streams for longer than a measurement.
inline cudaStream_t own_stream(size_t index) {
  static std::vector<cudaStream_t> streams;
  while (streams.size() <= index) {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    streams.push_back(stream);
  }
  return streams[index];
}
