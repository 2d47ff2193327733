// The fastest way to drive the bench without Python: the same model, monitors and input as the
// co-simulation, clocked by a plain loop.
//
// usage: plain FILE, with FILE in hexadecimal words: packet words, bus writes, packets, slot count.
// Prints the cycles of the run and the seconds that they took.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <vector>

#include "Vtop.h"
#include "Vtop___024root.h"
#include "verilated.h"

namespace {

constexpr uint32_t kQueue = 256;
constexpr uint32_t kBus = 4096;
constexpr int kGlance = 1000;  // cycles between two looks at the bench's counters

struct Words {
  std::ifstream file;
  explicit Words(const char* path) : file(path) {
    if (!file) {
      std::cerr << "cannot read " << path << '\n';
      std::exit(2);
    }
    file >> std::hex;
  }
  uint32_t next() {
    uint32_t word;
    if (!(file >> word)) {
      std::cerr << "the run file ends too early\n";
      std::exit(2);
    }
    return word;
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: plain FILE\n";
    return 2;
  }
  VerilatedContext context;
  Vtop model{&context};
  auto* root = model.rootp;
  auto cycle = [&] {
    model.clk = 0;
    model.eval();
    model.clk = 1;
    model.eval();
  };
  Words words(argv[1]);

  model.rst = 1;
  for (int i = 0; i < 10; i++) cycle();
  model.rst = 0;

  const uint32_t packet_words = words.next();
  const uint32_t writes = words.next();
  for (uint32_t at = 0, ticket = 1; at < writes; at += kBus, ticket++) {
    const uint32_t count = std::min(kBus, writes - at);
    for (uint32_t i = 0; i < count; i++) {
      root->tidemill_bench__DOT__bus_address[i] = words.next();
      root->tidemill_bench__DOT__bus_data[i] = words.next();
    }
    root->tidemill_bench__DOT__bus_count = count;
    root->tidemill_bench__DOT__bus_write = 1;
    root->tidemill_bench__DOT__bus_ticket = ticket;
    do cycle();
    while (root->tidemill_bench__DOT__bus_done != ticket);
  }

  const uint32_t packets = words.next();
  std::vector<uint32_t> data(packets * packet_words);
  for (auto& word : data) word = words.next();

  uint32_t filled = 0;
  const uint32_t first = root->tidemill_bench__DOT__cycle;
  const auto begin = std::chrono::steady_clock::now();
  while (root->tidemill_bench__DOT__received < 2 * packets) {
    const uint32_t room = std::min(root->tidemill_bench__DOT__fed + kQueue, packets);
    for (; filled < room; filled++)
      for (uint32_t w = 0; w < packet_words; w++)
        root->tidemill_bench__DOT__samples[filled % kQueue][w] = data[filled * packet_words + w];
    root->tidemill_bench__DOT__wanted = filled;
    for (int i = 0; i < kGlance; i++) cycle();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%u %.6f\n", root->tidemill_bench__DOT__cycle - first, seconds.count());
  model.final();
  return 0;
}
