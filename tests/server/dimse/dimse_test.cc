// SPDX-License-Identifier: Apache-2.0
// The upper layer's units and the command sets: what is encoded is parsed again, and no bytes make the parsers read
// beyond them.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/dimse/command.h"
#include "server/dimse/elements.h"
#include "server/dimse/pdu.h"

namespace intrawarp::dimse {
namespace {

AssociateRequest SomeRequest(std::mt19937& random) {
  AssociateRequest request{"CALLED", "CALLING", {}, {}, static_cast<uint32_t>(random())};
  const int count = 1 + static_cast<int>(random() % 5);
  for (int i = 0; i < count; ++i) {
    PresentationContext context{static_cast<uint8_t>(2 * i + 1), absl::StrCat("1.2.", random()), {}};
    for (uint32_t k = 0; k <= random() % 3; ++k) context.transfer_syntaxes.push_back(absl::StrCat("1.3.", random()));
    request.contexts.push_back(std::move(context));
    if (random() % 2 == 0) request.roles.push_back({absl::StrCat("1.4.", random()), random() % 2 == 0, true});
  }
  return request;
}

absl::string_view BodyOf(const std::string& unit) { return absl::string_view(unit).substr(kPduHeaderBytes); }

TEST(PduTest, ARequestIsParsedAgain) {
  std::mt19937 random(std::random_device{}());
  for (int run = 0; run < 200; ++run) {
    const AssociateRequest request = SomeRequest(random);
    const std::string unit = EncodeAssociateRequest(request);
    const auto parsed = ParseAssociateRequest(BodyOf(unit));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->called_ae, "CALLED");
    EXPECT_EQ(parsed->calling_ae, "CALLING");
    EXPECT_EQ(parsed->max_pdu_bytes, request.max_pdu_bytes);
    ASSERT_EQ(parsed->contexts.size(), request.contexts.size());
    for (size_t i = 0; i < request.contexts.size(); ++i) {
      EXPECT_EQ(parsed->contexts[i].id, request.contexts[i].id);
      EXPECT_EQ(parsed->contexts[i].abstract_syntax, request.contexts[i].abstract_syntax);
      EXPECT_EQ(parsed->contexts[i].transfer_syntaxes, request.contexts[i].transfer_syntaxes);
    }
    ASSERT_EQ(parsed->roles.size(), request.roles.size());
    for (size_t i = 0; i < request.roles.size(); ++i) {
      EXPECT_EQ(parsed->roles[i].sop_class, request.roles[i].sop_class);
      EXPECT_EQ(parsed->roles[i].scu, request.roles[i].scu);
      EXPECT_TRUE(parsed->roles[i].scp);
    }
  }
}

TEST(PduTest, AnAnswerIsParsedAgain) {
  AssociateAccept accept{{{1, ContextResult::kAccepted, "1.2.3"}, {3, ContextResult::kTransferSyntaxes, "1.2"}}, {}, 7};
  const std::string unit = EncodeAssociateAccept(accept, "A", "B");
  const auto parsed = ParseAssociateAccept(BodyOf(unit));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->contexts.size(), 2);
  EXPECT_EQ(parsed->contexts[0].transfer_syntax, "1.2.3");
  EXPECT_EQ(parsed->contexts[1].result, ContextResult::kTransferSyntaxes);
  EXPECT_EQ(parsed->max_pdu_bytes, 7);
  const auto reject = ParseAssociateReject(BodyOf(EncodeAssociateReject(kLocalLimit)));
  ASSERT_TRUE(reject.ok());
  EXPECT_TRUE(reject->transient);
  EXPECT_EQ(reject->reason, kLocalLimit.reason);
}

TEST(PduTest, EveryCutRequestIsRefusedOrIsAShorterList) {
  std::mt19937 random(std::random_device{}());
  const AssociateRequest request = SomeRequest(random);
  const std::string unit = EncodeAssociateRequest(request);
  const absl::string_view body = BodyOf(unit);
  for (size_t size = 0; size < body.size(); ++size) {
    const std::string cut(body.substr(0, size));  // a copy, so that a sanitizer sees its end
    const auto parsed = ParseAssociateRequest(cut);
    if (!parsed.ok()) {
      EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    } else {
      EXPECT_LE(parsed->contexts.size(), request.contexts.size());
    }
  }
}

TEST(PduTest, DamagedBytesAreParsedWithinTheirBounds) {
  std::mt19937 random(std::random_device{}());
  for (int run = 0; run < 20000; ++run) {
    std::string body(BodyOf(EncodeAssociateRequest(SomeRequest(random))));
    for (uint32_t k = 0; k <= random() % 4; ++k) body[random() % body.size()] = static_cast<char>(random());
    const auto parsed = ParseAssociateRequest(body);
    if (!parsed.ok()) continue;
    for (const PresentationContext& context : parsed->contexts) {
      EXPECT_TRUE(IsUid(context.abstract_syntax));
      EXPECT_EQ(context.id % 2, 1);
    }
  }
}

TEST(PduTest, ContextsAreOddAndDifferent) {
  for (const std::vector<uint8_t>& ids : {std::vector<uint8_t>{2}, std::vector<uint8_t>{1, 1}}) {
    AssociateRequest request{"A", "B", {}, {}, 0};
    for (const uint8_t id : ids) request.contexts.push_back({id, "1.2", {"1.3"}});
    EXPECT_FALSE(ParseAssociateRequest(BodyOf(EncodeAssociateRequest(request))).ok());
  }
}

TEST(PduTest, FragmentsStayInTheirUnit) {
  const std::string one = EncodeFragmentHeader(3, /*is_command=*/true, /*is_last=*/false, 5) + "hello";
  const std::string two = EncodeFragmentHeader(5, /*is_command=*/false, /*is_last=*/true, 0);
  const std::string body = absl::StrCat(BodyOf(one), BodyOf(two));
  const auto fragments = ParseFragments(body);
  ASSERT_TRUE(fragments.ok()) << fragments.status();
  ASSERT_EQ(fragments->size(), 2);
  EXPECT_EQ((*fragments)[0].payload, "hello");
  EXPECT_TRUE((*fragments)[0].is_command);
  EXPECT_FALSE((*fragments)[0].is_last);
  EXPECT_EQ((*fragments)[1].context, 5);
  EXPECT_TRUE((*fragments)[1].is_last);
  EXPECT_FALSE(ParseFragments("").ok());
  for (size_t size = 1; size < body.size(); ++size) {
    const std::string cut = body.substr(0, size);
    const bool is_whole = size == BodyOf(one).size();
    EXPECT_EQ(ParseFragments(cut).ok(), is_whole) << size;
  }
  for (const char* length : {"\xff\xff\xff\xff", "\x80\x00\x00\x00", "\x00\x00\x00\x00", "\x00\x00\x00\x01"}) {
    std::string wrong = body;
    wrong.replace(0, 4, std::string(length, 4));
    EXPECT_FALSE(ParseFragments(wrong).ok());
  }
}

TEST(ElementsTest, AreParsedAgain) {
  Elements elements;
  elements.SetUid(0x00080018, "1.2.345");
  elements.SetText(0x00100020, "odd");
  elements.Set16(0x00280010, 512);
  const std::string bytes = elements.Encode();
  EXPECT_EQ(bytes.size() % 2, 0);
  const auto parsed = Elements::Parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->Text(0x00080018), "1.2.345");
  EXPECT_EQ(parsed->Text(0x00100020), "odd");
  EXPECT_EQ(parsed->Get16(0x00280010), 512);
  EXPECT_EQ(parsed->Get16(0x00100020), std::nullopt);
  EXPECT_FALSE(parsed->Has(0x00080019));
  for (size_t size = 1; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    const auto shorter = Elements::Parse(cut);
    if (!shorter.ok()) continue;
    EXPECT_EQ(shorter->Encode(), cut);
  }
}

TEST(ElementsTest, LengthsAreChecked) {
  for (const uint32_t length : {9u, 0x7fffffffu, 0x80000000u, 0xfffffff8u, 0xffffffffu}) {
    std::string bytes = {0x08, 0, 0x18, 0};
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
    bytes += "12345678";
    EXPECT_FALSE(Elements::Parse(bytes).ok()) << length;
  }
  Elements once;
  once.Set16(0x00280010, 1);
  EXPECT_FALSE(Elements::Parse(once.Encode() + once.Encode()).ok());
}

TEST(CommandTest, IsParsedAgain) {
  Command request;
  request.field = kStoreRequest;
  request.message_id = 77;
  request.has_data = true;
  request.elements.SetUid(kAffectedSopClass, "1.2.3");
  const auto parsed = ParseCommand(EncodeCommand(request));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->field, kStoreRequest);
  EXPECT_EQ(parsed->message_id, 77);
  EXPECT_TRUE(parsed->has_data);
  EXPECT_EQ(parsed->elements.Text(kAffectedSopClass), "1.2.3");
  const auto response = ParseCommand(EncodeCommand(ResponseTo(*parsed, kOutOfResources)));
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_TRUE(response->is_response());
  EXPECT_EQ(response->message_id, 77);
  EXPECT_EQ(response->status(), kOutOfResources);
  EXPECT_FALSE(response->has_data);
}

TEST(CommandTest, AParsedCommandIsEncodedWithOneGroupLength) {
  Command request;
  request.field = kEchoRequest;
  request.message_id = 5;
  const std::string bytes = EncodeCommand(request);
  const auto parsed = ParseCommand(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(EncodeCommand(*parsed), bytes);
}

TEST(CommandTest, NeedsItsFieldTypeAndId) {
  for (const Tag missing : {kCommandFieldTag, kMessageId, kDataSetType}) {
    Elements elements;
    for (const Tag tag : {kCommandFieldTag, kMessageId, kDataSetType}) {
      if (tag != missing) elements.Set16(tag, 1);
    }
    EXPECT_EQ(ParseCommand(elements.Encode()).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(NamesTest, OfUidsAndApplicationEntities) {
  EXPECT_TRUE(IsUid("1.2.840.10008.1.1"));
  EXPECT_FALSE(IsUid(""));
  EXPECT_FALSE(IsUid("1.2/../../x"));
  EXPECT_FALSE(IsUid(std::string(65, '1')));
  EXPECT_TRUE(IsUid(std::string(64, '1')));
  EXPECT_TRUE(IsUid("1.0.2"));
  for (const char* wrong : {"..", ".", "1.", ".1", "1..2", "1.02", "00", "1.2 ", "1.2a"})
    EXPECT_FALSE(IsUid(wrong)) << wrong;
  EXPECT_TRUE(IsAeTitle("ORTHANC_1"));
  EXPECT_FALSE(IsAeTitle(""));
  EXPECT_FALSE(IsAeTitle("TOO LONG OR SPACED"));
  EXPECT_FALSE(IsAeTitle(std::string(17, 'A')));
}

}  // namespace
}  // namespace intrawarp::dimse
