// SPDX-License-Identifier: Apache-2.0
// The command line's sparse matrices and their products.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "io/format/matrix_market.h"
#include "tests/client/cli_fixture.h"

namespace intrawarp::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Their values as a dense matrix, by rows.
std::vector<double> Dense(const std::string& path) {
  const auto coo = io::ReadMatrixMarket(path);
  EXPECT_TRUE(coo.ok()) << coo.status();
  if (!coo.ok()) return {};
  std::vector<double> dense(static_cast<size_t>(coo->rows) * coo->columns);
  for (size_t i = 0; i < coo->values.size(); ++i) {
    dense[static_cast<size_t>(coo->row_indices[i]) * coo->columns + coo->column_indices[i]] += coo->values[i];
  }
  return dense;
}

class CliMatrixTest : public CliTest {
 protected:
  // A = [1 2 0; 0 0 3], symmetric S = [1 4; 4 0], B = [1 0; 0 1; 2 0], M = [0 1; 0 0], D = [10 0; 0 20].
  CliMatrixTest() {
    Write("a.mtx", "general\n2 3 3\n1 1 1\n1 2 2\n2 3 3\n");
    Write("s.mtx", "symmetric\n2 2 2\n1 1 1\n2 1 4\n");
    Write("b.mtx", "general\n3 2 3\n1 1 1\n2 2 1\n3 1 2\n");
    Write("m.mtx", "general\n2 2 1\n1 2 1\n");
    Write("d.mtx", "general\n2 2 2\n1 1 10\n2 2 20\n");
  }
  static void Write(const std::string& name, const std::string& text) {
    std::ofstream(Out(name)) << "%%MatrixMarket matrix coordinate real " << text;
  }
  static std::vector<double> Multiplied(std::vector<std::string> flags) {
    flags.insert(flags.begin(), "multiply");
    flags.push_back("--out=" + Out("c.mtx"));
    EXPECT_EQ(Succeed(flags), "");
    EXPECT_EQ(Succeed({"matrix", "list"}), "");
    return Dense(Out("c.mtx"));
  }
  static std::string File(const std::string& flag, const std::string& name) { return "--" + flag + "=" + Out(name); }
};

TEST_F(CliMatrixTest, ProductsOfThree) {
  // B A B, and A^T S A.
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("p", "b.mtx"), File("r", "b.mtx")}), ElementsAre(1, 2, 6, 0, 2, 4));
  EXPECT_THAT(Multiplied({File("a", "s.mtx"), File("p", "a.mtx"), File("report", "triple.json")}),
              ElementsAre(1, 2, 12, 2, 4, 24, 12, 24, 0));
  const nlohmann::json report = ReadJson(Out("triple.json"));
  EXPECT_EQ(report["intermediate"]["rows"], 2);
  EXPECT_EQ(report["intermediate"]["columns"], 3);
  EXPECT_EQ(report["plan_reused"], false);
  Wrong({"multiply", File("a", "a.mtx"), File("b", "b.mtx"), File("p", "b.mtx"), File("out", "c.mtx")}, "--p");
  Wrong({"multiply", File("a", "a.mtx"), File("r", "b.mtx"), File("out", "c.mtx")}, "--r");
}

TEST_F(CliMatrixTest, NewValuesInAResidentPattern) {
  Write("a2.mtx", "general\n2 3 3\n1 1 10\n1 2 20\n2 3 30\n");
  EXPECT_EQ(Succeed({"matrix", "put", Out("a.mtx"), "--id=a"}), "matrices/a");
  EXPECT_EQ(Succeed({"matrix", "put", Out("b.mtx"), "--id=b"}), "matrices/b");
  EXPECT_EQ(Succeed({"matrix", "put", Out("a2.mtx"), "--pattern=matrices/a", "--id=a2"}), "matrices/a2");
  EXPECT_EQ(Succeed({"matrix", "get", "matrices/a2", "--out=" + Out("got.mtx")}), "");
  EXPECT_EQ(Dense(Out("got.mtx")), Dense(Out("a2.mtx")));
  const auto reused = [](const std::string& a) {
    Succeed({"multiply", "--a=" + a, "--b=matrices/b", "--reuse_plan", "--out=" + Out("c.mtx"),
             "--report=" + Out("reuse.json")});
    return ReadJson(Out("reuse.json"))["plan_reused"].get<bool>();
  };
  EXPECT_FALSE(reused("matrices/a"));
  EXPECT_TRUE(reused("matrices/a2"));
  EXPECT_THAT(Dense(Out("c.mtx")), ElementsAre(10, 20, 60, 0));
  Fail({"matrix", "put", Out("s.mtx"), "--pattern=matrices/a"}, "INVALID_ARGUMENT", "not at the places");
  Wrong({"matrix", "put", Out("a2.mtx"), "--pattern=a"}, "--pattern");
  for (const char* name : {"matrices/a", "matrices/a2", "matrices/b"})
    EXPECT_EQ(Succeed({"matrix", "delete", name}), "");
}

TEST_F(CliMatrixTest, MatricesComeBackAsTheyWere) {
  EXPECT_EQ(Succeed({"matrix", "put", Out("a.mtx"), "--id=a"}), "matrices/a");
  EXPECT_EQ(Succeed({"matrix", "put", Out("a.mtx"), "--id=a"}), "matrices/a");
  EXPECT_EQ(Succeed({"matrix", "put", Out("s.mtx"), "--id=s", "--values=float64"}), "matrices/s");
  const std::string list = Succeed({"matrix", "list"});
  EXPECT_THAT(list, HasSubstr("matrices/a\t2x3\t3 entries\tfloat32\t"));
  EXPECT_THAT(list, HasSubstr("matrices/s\t2x2\t3 entries\tfloat64\t"));
  Succeed({"matrix", "get", "matrices/a", "--out=" + Out("back.mtx.gz")});
  EXPECT_THAT(Dense(Out("back.mtx.gz")), ElementsAre(1, 2, 0, 0, 0, 3));
  Succeed({"matrix", "get", "matrices/s", "--out=" + Out("back.mtx")});
  EXPECT_THAT(Dense(Out("back.mtx")), ElementsAre(1, 4, 4, 0));
  Succeed({"matrix", "delete", "matrices/a"});
  Succeed({"matrix", "delete", "matrices/s"});
}

TEST_F(CliMatrixTest, ProductsAreTheKnownOnes) {
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx")}), ElementsAre(1, 2, 6, 0));
  EXPECT_THAT(Multiplied({File("a", "s.mtx")}), ElementsAre(17, 4, 4, 16));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), "--transpose_a"}), ElementsAre(1, 2, 0, 2, 4, 0, 0, 0, 9));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), File("mask", "m.mtx")}), ElementsAre(0, 2, 0, 0));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), File("mask", "m.mtx"), "--complement_mask"}),
              ElementsAre(1, 0, 6, 0));
  EXPECT_THAT(Multiplied({File("a", "a.mtx"), File("b", "b.mtx"), "--alpha=2", File("addend", "d.mtx"), "--beta=0.5"}),
              ElementsAre(7, 4, 12, 10));
  EXPECT_THAT(Multiplied({File("a", "s.mtx"), "--semiring=or-and"}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(Multiplied({File("a", "s.mtx"), "--semiring=min-plus"}), ElementsAre(2, 5, 5, 8));
  for (const char* precision : {"fp16", "bf16", "tf32", "fp32", "fp64"}) {
    EXPECT_THAT(Multiplied({File("a", "s.mtx"), std::string("--precision=") + precision}), ElementsAre(17, 4, 4, 16));
  }
}

TEST_F(CliMatrixTest, AProductStaysResident) {
  Succeed({"matrix", "put", Out("a.mtx"), "--id=a"});
  EXPECT_EQ(Succeed({"multiply", "--a=matrices/a", File("b", "b.mtx"), "--keep=c", File("report", "report.json")}),
            "matrices/c");
  const nlohmann::json report = ReadJson(Out("report.json"));
  EXPECT_EQ(report["device"], "cpu");
  EXPECT_EQ(report["entries"], 3);
  EXPECT_EQ(report["estimate"]["products"], 3);
  EXPECT_GT(report["latency_ms"]["total"], 0);
  Fail({"multiply", "--a=matrices/a", File("b", "b.mtx"), "--keep=c"}, "ALREADY_EXISTS", "matrices/c");
  Succeed({"matrix", "get", "matrices/c", "--out=" + Out("c.mtx")});
  EXPECT_THAT(Dense(Out("c.mtx")), ElementsAre(1, 2, 6, 0));
  Succeed({"matrix", "delete", "matrices/a"});
  Succeed({"matrix", "delete", "matrices/c"});
}

TEST_F(CliMatrixTest, WrongProductsHaveTheirCause) {
  Fail({"multiply", File("a", "a.mtx"), File("out", "x.mtx")}, "INVALID_ARGUMENT", "b: ");
  Fail({"multiply", File("a", "nothing.mtx"), File("out", "x.mtx")}, "NOT_FOUND", "nothing.mtx");
  Fail({"multiply", "--a=matrices/nothing", File("out", "x.mtx")}, "NOT_FOUND", "matrices/nothing");
  Write("lying.mtx", "general\n2 2 1000000\n1 1 1\n");
  Fail({"multiply", File("a", "lying.mtx"), File("out", "x.mtx")}, "DATA_LOSS", "lying.mtx: data: ");
  Write("outside.mtx", "general\n2 2 1\n3 1 1\n");
  Fail({"matrix", "put", Out("outside.mtx")}, "INVALID_ARGUMENT", "outside.mtx: line 3: ");
  Write("short.mtx", "general\n2 2 2\n1 1 1\n");
  Fail({"matrix", "put", Out("short.mtx")}, "DATA_LOSS", "short.mtx: data: ");
  EXPECT_FALSE(std::filesystem::exists(Out("x.mtx")));
  Wrong({"multiply", "--a=matrices/a"}, "--out");
  Wrong({"multiply", "--a=matrices/a", "--out=c.mtx", "--beta=2"}, "--beta");
  Wrong({"multiply", "--a=matrices/a", "--out=c.mtx", "--complement_mask"}, "--complement_mask");
  Wrong({"multiply", "--a=matrices/a", "--out=c.txt"}, "c.txt");
}

}  // namespace
}  // namespace intrawarp::client
