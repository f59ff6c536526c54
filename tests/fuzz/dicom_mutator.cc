// SPDX-License-Identifier: Apache-2.0
// Mutations of dicom_fuzz's inputs that keep most of a file well-formed, so that they get past the parser: elements in
// explicit little endian are changed, removed, repeated and added with lengths that fit; files are repeated, dropped
// and exchanged. What is not explicit little endian is mutated as bytes.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/parts.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

using Random = std::minstd_rand;

constexpr size_t kMostFiles = 8;
constexpr uint32_t kUndefined = 0xffffffff;
constexpr uint16_t kItemGroup = 0xfffe;

struct Element {
  size_t at = 0;      // of its tag
  size_t header = 8;  // bytes before the value
  size_t size = 0;    // of the value; 0 for what holds other elements
  std::string vr;     // empty: an item or a delimiter
};

struct Known {
  uint16_t group, element;
  const char* vr;
};
// The elements that the loader asks for.
constexpr Known kKnown[] = {
    {0x0002, 0x0010, "UI"}, {0x0004, 0x1220, "SQ"}, {0x0004, 0x1500, "CS"}, {0x0008, 0x0008, "CS"},
    {0x0008, 0x0016, "UI"}, {0x0008, 0x0018, "UI"}, {0x0008, 0x0060, "CS"}, {0x0018, 0x0050, "DS"},
    {0x0018, 0x0081, "DS"}, {0x0018, 0x0088, "DS"}, {0x0018, 0x1060, "DS"}, {0x0018, 0x9087, "FD"},
    {0x0018, 0x9114, "SQ"}, {0x0018, 0x9117, "SQ"}, {0x0018, 0x9118, "SQ"}, {0x0020, 0x000e, "UI"},
    {0x0020, 0x0012, "IS"}, {0x0020, 0x0013, "IS"}, {0x0020, 0x0032, "DS"}, {0x0020, 0x0037, "DS"},
    {0x0020, 0x0052, "UI"}, {0x0020, 0x0100, "IS"}, {0x0020, 0x9111, "SQ"}, {0x0020, 0x9113, "SQ"},
    {0x0020, 0x9116, "SQ"}, {0x0020, 0x9128, "UL"}, {0x0020, 0x9156, "US"}, {0x0028, 0x0002, "US"},
    {0x0028, 0x0004, "CS"}, {0x0028, 0x0008, "IS"}, {0x0028, 0x0010, "US"}, {0x0028, 0x0011, "US"},
    {0x0028, 0x0030, "DS"}, {0x0028, 0x0100, "US"}, {0x0028, 0x0101, "US"}, {0x0028, 0x0102, "US"},
    {0x0028, 0x0103, "US"}, {0x0028, 0x0120, "US"}, {0x0028, 0x0121, "SS"}, {0x0028, 0x1052, "DS"},
    {0x0028, 0x1053, "DS"}, {0x0028, 0x3000, "SQ"}, {0x0028, 0x9110, "SQ"}, {0x0028, 0x9145, "SQ"},
    {0x0029, 0x0010, "LO"}, {0x0029, 0x1010, "OB"}, {0x0040, 0x9096, "SQ"}, {0x0062, 0x0001, "CS"},
    {0x0062, 0x0002, "SQ"}, {0x0062, 0x000a, "SQ"}, {0x0062, 0x000b, "US"}, {0x0064, 0x0002, "SQ"},
    {0x0064, 0x0005, "SQ"}, {0x0064, 0x0007, "UL"}, {0x0064, 0x0008, "FD"}, {0x0064, 0x0009, "OF"},
    {0x0070, 0x0308, "SQ"}, {0x3004, 0x000c, "DS"}, {0x3004, 0x000e, "DS"}, {0x3006, 0x00c6, "DS"},
    {0x5200, 0x9229, "SQ"}, {0x5200, 0x9230, "SQ"}, {0x7fe0, 0x0008, "OF"}, {0x7fe0, 0x0009, "OD"},
    {0x7fe0, 0x0010, "OW"},
};
constexpr const char* kNumbers[] = {"0",      "1",     "-1",    "0.5",        "2",          "3",
                                    "4",      "1e-30", "1e30",  "1e308",      "-1e308",     "nan",
                                    "inf",    "65535", "65536", "2147483647", "4294967295", "9223372036854775807",
                                    "0.3333", "-0",    "",      " 1 ",        "1x",         "100000"};
constexpr const char* kWords[] = {"MONOCHROME1",
                                  "MONOCHROME2",
                                  "RGB",
                                  "PALETTE COLOR",
                                  "YBR_FULL",
                                  "BINARY",
                                  "FRACTIONAL",
                                  "CT",
                                  "MR",
                                  "SEG",
                                  "RTDOSE",
                                  "PT",
                                  "RIGID",
                                  "AFFINE",
                                  "RIGID_SCALE",
                                  "IMAGE",
                                  "ORIGINAL\\PRIMARY\\M\\ND\\MOSAIC",
                                  "DERIVED\\PRIMARY\\LOCALIZER",
                                  "IM1",
                                  "IM0",
                                  "..\\IM1"};
constexpr const char* kUids[] = {"1.2.840.10008.1.2",
                                 "1.2.840.10008.1.2.1",
                                 "1.2.840.10008.1.2.1.99",
                                 "1.2.840.10008.1.2.2",
                                 "1.2.840.10008.1.2.4.50",
                                 "1.2.840.10008.1.2.4.51",
                                 "1.2.840.10008.1.2.4.57",
                                 "1.2.840.10008.1.2.4.70",
                                 "1.2.840.10008.1.2.4.80",
                                 "1.2.840.10008.1.2.4.81",
                                 "1.2.840.10008.1.2.4.90",
                                 "1.2.840.10008.1.2.4.91",
                                 "1.2.840.10008.1.2.5",
                                 "1.2.840.10008.5.1.4.1.1.2",
                                 "1.2.840.10008.5.1.4.1.1.4",
                                 "1.2.840.10008.5.1.4.1.1.4.1",
                                 "1.2.840.10008.5.1.4.1.1.66.4",
                                 "1.2.840.10008.5.1.4.1.1.66.1",
                                 "1.2.840.10008.5.1.4.1.1.66.3",
                                 "1.2.840.10008.5.1.4.1.1.481.2",
                                 "1.2.840.10008.1.3.10",
                                 "1.2.3",
                                 ""};
constexpr uint32_t kSizes[] = {0,     1,     2,     3,          4,          7,          8,         10,   12,
                               15,    16,    17,    32,         64,         255,        256,       4096, 32767,
                               32768, 65535, 65536, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};

uint32_t Get(const std::string& bytes, size_t at, int count) {
  uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)]);
  return value;
}
void Put(uint64_t value, int count, std::string& to) {
  for (int i = 0; i < count; ++i) to.push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

size_t Below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }
template <typename T, size_t N>
const T& Pick(Random& random, const T (&from)[N]) {
  return from[Below(random, N)];
}

bool IsLong(const std::string& vr) {
  static constexpr const char* kLong[] = {"OB", "OD", "OF", "OL", "OW", "SQ", "UC", "UR", "UT", "UN"};
  return std::any_of(std::begin(kLong), std::end(kLong), [&](const char* v) { return vr == v; });
}

// The elements of all levels, in their order in the file, up to the first that is not well-formed.
std::vector<Element> Elements(const std::string& file) {
  std::vector<Element> elements;
  size_t at = file.size() >= 132 && file.compare(128, 4, "DICM") == 0 ? 132 : 0;
  bool in_pixels = false;
  while (at + 8 <= file.size()) {
    Element element{at, 8, 0, ""};
    uint32_t size = 0;
    if (Get(file, at, 2) == kItemGroup) {
      size = in_pixels ? Get(file, at + 4, 4) : 0;
      if (Get(file, at + 2, 2) == 0xe0dd) in_pixels = false;
    } else {
      element.vr = file.substr(at + 4, 2);
      if (element.vr[0] < 'A' || element.vr[0] > 'Z') break;
      if (IsLong(element.vr)) {
        if (at + 12 > file.size()) break;
        element.header = 12;
        size = Get(file, at + 8, 4);
      } else {
        size = Get(file, at + 6, 2);
      }
      if (size == kUndefined && element.vr != "SQ") in_pixels = true;
      if (size == kUndefined || element.vr == "SQ") size = 0;
    }
    if (size > file.size() - at - element.header) break;
    element.size = size;
    elements.push_back(element);
    at += element.header + element.size;
  }
  return elements;
}

std::string Encode(uint16_t group, uint16_t element, const std::string& vr, std::string value) {
  if (value.size() % 2 != 0) value.push_back(vr == "UI" ? '\0' : ' ');
  std::string bytes;
  Put(group, 2, bytes);
  Put(element, 2, bytes);
  bytes += vr;
  if (IsLong(vr)) {
    Put(0, 2, bytes);
    Put(value.size(), 4, bytes);
  } else {
    value.resize(std::min<size_t>(value.size(), 0xfffe));
    Put(value.size(), 2, bytes);
  }
  return bytes + value;
}

std::string Mutated(std::string value, size_t room) {
  const size_t size = value.size();
  value.resize(size + std::max<size_t>(room, 1));
  value.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(value.data()), size, value.size()));
  return value;
}

template <typename T, size_t N>
std::string Texts(Random& random, const T (&from)[N]) {
  std::string text = Pick(random, from);
  for (size_t more = Below(random, 3) == 0 ? Below(random, 7) : 0; more > 0; --more) {
    text += '\\';
    text += Pick(random, from);
  }
  return text;
}

// One item, of one element that the loader knows.
std::string SomeSequence(Random& random);

std::string Value(Random& random, const std::string& vr, const std::string& old) {
  if (Below(random, 4) == 0) return Mutated(old, 64);
  std::string bytes;
  if (vr == "DS" || vr == "IS") {
    if (Below(random, 2) == 0 || old.empty()) return Texts(random, kNumbers);
    // One of the old numbers.
    const size_t begin = old.rfind('\\', Below(random, old.size()));
    const size_t from = begin == std::string::npos ? 0 : begin + 1;
    const size_t end = std::min(old.find('\\', from), old.size());
    return old.substr(0, from) + Pick(random, kNumbers) + old.substr(end);
  }
  if (vr == "CS" || vr == "LO" || vr == "SH") return Texts(random, kWords);
  if (vr == "UI") return Pick(random, kUids);
  if (vr == "US" || vr == "SS") Put(Pick(random, kSizes), 2, bytes);
  if (vr == "UL" || vr == "SL") {
    for (size_t i = 0; i <= Below(random, 3); ++i) Put(Pick(random, kSizes), 4, bytes);
  }
  if (vr == "FD" || vr == "FL") {
    const double number = std::strtod(Pick(random, kNumbers), nullptr);
    const auto single = static_cast<float>(number);
    if (vr == "FD") bytes.assign(reinterpret_cast<const char*>(&number), sizeof(number));
    if (vr == "FL") bytes.assign(reinterpret_cast<const char*>(&single), sizeof(single));
  }
  if (vr == "SQ") return SomeSequence(random);
  return bytes.empty() ? Mutated(old, 64) : bytes;
}

std::string SomeElement(Random& random) {
  const Known& known = Pick(random, kKnown);
  return Encode(known.group, known.element, known.vr, Value(random, known.vr, ""));
}

std::string SomeSequence(Random& random) {
  std::string item;
  Put(kItemGroup, 2, item);
  Put(0xe000, 2, item);
  const std::string element = Below(random, 3) == 0 ? "" : SomeElement(random);
  Put(element.size(), 4, item);
  return item + element;
}

void MutateFile(Random& random, std::string& file, size_t room) {
  const std::vector<Element> elements = Elements(file);
  if (elements.empty() || Below(random, 12) == 0) {
    file = Mutated(std::move(file), room);
    return;
  }
  const Element& chosen = elements[Below(random, elements.size())];
  const size_t whole = chosen.header + chosen.size;
  const std::string value = file.substr(chosen.at + chosen.header, chosen.size);
  const auto group = static_cast<uint16_t>(Get(file, chosen.at, 2));
  const auto element = static_cast<uint16_t>(Get(file, chosen.at + 2, 2));
  switch (Below(random, 10)) {
    case 0:
      file.erase(chosen.at, whole);
      break;
    case 1:
      file.insert(elements[Below(random, elements.size())].at, file.substr(chosen.at, whole));
      break;
    case 2:
      file.insert(chosen.at, SomeElement(random));
      break;
    case 3: {
      const Known& known = Pick(random, kKnown);
      if (chosen.vr.empty()) break;
      file.replace(chosen.at, whole, Encode(known.group, known.element, chosen.vr, value));
      break;
    }
    case 4: {
      // The length alone.
      const size_t at = chosen.at + (chosen.header == 12 ? 8 : chosen.vr.empty() ? 4 : 6);
      std::string size;
      Put(Pick(random, kSizes), chosen.header == 12 || chosen.vr.empty() ? 4 : 2, size);
      file.replace(at, size.size(), size);
      break;
    }
    default:
      if (chosen.vr.empty()) {
        // A fragment of compressed pixels, or nothing.
        std::string fragment = Mutated(value, 64), size;
        fragment.resize(fragment.size() + fragment.size() % 2);
        Put(fragment.size(), 4, size);
        if (chosen.size > 0) file.replace(chosen.at + 4, 4 + chosen.size, size + fragment);
      } else if (chosen.vr != "SQ") {
        file.replace(chosen.at, whole, Encode(group, element, chosen.vr, Value(random, chosen.vr, value)));
      }
  }
}

void MutateFiles(Random& random, std::vector<std::string>& files) {
  const size_t chosen = Below(random, files.size());
  switch (Below(random, 3)) {
    case 0:
      if (files.size() < kMostFiles) files.push_back(files[chosen]);
      break;
    case 1:
      if (files.size() > 1) files.erase(files.begin() + static_cast<ptrdiff_t>(chosen));
      break;
    default:
      std::swap(files[chosen], files[Below(random, files.size())]);
  }
}

// Back to libFuzzer's memory; too much is cut.
size_t Store(const std::string& input, uint8_t* data, size_t max_size) {
  const size_t size = std::min(input.size(), max_size);
  std::memcpy(data, input.data(), size);
  return size;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  Random random(seed);
  std::vector<std::string> files = intrawarp::fuzz::SplitParts(data + 1, std::max<size_t>(size, 1) - 1, kMostFiles);
  if (files.empty()) return LLVMFuzzerMutate(data, size, max_size);
  auto options = static_cast<char>(data[0]);
  if (Below(random, 16) == 0) options = static_cast<char>(random());
  if (Below(random, 8) == 0) MutateFiles(random, files);
  for (size_t i = 0; i <= Below(random, 4); ++i) {
    MutateFile(random, files[Below(random, files.size())], max_size - std::min(size, max_size));
  }
  return Store(options + intrawarp::fuzz::JoinParts(files), data, max_size);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1, const uint8_t* data2, size_t size2,
                                            uint8_t* out, size_t max_out_size, unsigned seed) {
  Random random(seed);
  if (size1 == 0 || size2 == 0) return 0;
  std::vector<std::string> files = intrawarp::fuzz::SplitParts(data1 + 1, size1 - 1, kMostFiles);
  const std::vector<std::string> others = intrawarp::fuzz::SplitParts(data2 + 1, size2 - 1, kMostFiles);
  if (files.empty() || others.empty()) return 0;
  const std::string& other = others[Below(random, others.size())];
  std::string& file = files[Below(random, files.size())];
  const std::vector<Element> from = Elements(other), to = Elements(file);
  if (Below(random, 2) == 0 || from.empty() || to.empty()) {
    if (files.size() < kMostFiles) files.push_back(other);
  } else {
    const Element& taken = from[Below(random, from.size())];
    file.insert(to[Below(random, to.size())].at, other.substr(taken.at, taken.header + taken.size));
  }
  return Store(static_cast<char>(data1[0]) + intrawarp::fuzz::JoinParts(files), out, max_out_size);
}
