// SPDX-License-Identifier: Apache-2.0
// Stands in for libFuzzer where that is not linked: runs a fuzz target on every file of the folders that are named, and
// on damaged versions of it, the same in every run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr int kDamaged = 50;

void Run(const std::string& input) {
  // An exact allocation, so that a sanitizer sees a read beyond it.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

std::string Damage(std::string input, std::mt19937& random) {
  for (int i = 0; i < 3 && !input.empty(); ++i) {
    const size_t at = random() % input.size();
    switch (random() % 4) {
      case 0:
        input.resize(at);
        break;
      case 1:
        input.erase(at, 1 + random() % 8);
        break;
      case 2:
        input.insert(at, input.substr(random() % input.size(), 16));
        break;
      default:
        input[at] = static_cast<char>(random());
    }
  }
  return input;
}

void RunFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::mt19937 random(static_cast<uint32_t>(input.size()));
  Run(input);
  for (int i = 0; i < kDamaged; ++i) Run(Damage(input, random));
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) RunFile(path);
    files += static_cast<int>(paths.size());
  }
  std::printf("%d files, each with %d damaged versions\n", files, kDamaged);
  return files > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
