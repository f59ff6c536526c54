// SPDX-License-Identifier: Apache-2.0
#include "io/picture/report_pdf.h"

#include <cairo-pdf.h>
#include <cairo.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/base/status_macros.h"
#include "io/picture/cairo_surface.h"

namespace intrawarp::io {
namespace {

// Points; a page is A4.
constexpr double kWidth = 595, kHeight = 842;
constexpr double kMargin = 50;
constexpr double kValueColumn = 190;
constexpr Font kTitleFont = {20, true};
constexpr Font kVerdictFont = {16, true};
constexpr Font kHeadingFont = {11, true};
constexpr Font kTextFont = {9, false};
constexpr double kLineStep = 1.35;

std::string Printable(absl::string_view text) {
  std::string out(text);
  std::replace_if(
      out.begin(), out.end(), [](char c) { return !absl::ascii_isprint(static_cast<unsigned char>(c)); }, '?');
  return out;
}

cairo_status_t Append(void* out, const unsigned char* bytes, unsigned int count) {
  static_cast<std::string*>(out)->append(reinterpret_cast<const char*>(bytes), count);
  return CAIRO_STATUS_SUCCESS;
}

struct DestroyContext {
  void operator()(cairo_t* context) const { cairo_destroy(context); }
};

class Pages {
 public:
  explicit Pages(const ReportDocument& document)
      : surface_(cairo_pdf_surface_create_for_stream(Append, &bytes_, kWidth, kHeight)),
        context_(cairo_create(surface_.get())) {
    const std::string created = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", document.time, absl::UTCTimeZone());
    cairo_pdf_surface_set_metadata(surface_.get(), CAIRO_PDF_METADATA_TITLE, Printable(document.title).c_str());
    cairo_pdf_surface_set_metadata(surface_.get(), CAIRO_PDF_METADATA_CREATE_DATE, created.c_str());
    cairo_pdf_surface_set_metadata(surface_.get(), CAIRO_PDF_METADATA_CREATOR, "intrawarp");
  }

  // Breaks the text between words where it is too wide.
  void Lines(double x, double width, absl::string_view text, Font font) {
    std::string line;
    for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
      const std::string longer = line.empty() ? Printable(word) : absl::StrCat(line, " ", Printable(word));
      if (!line.empty() && Width(longer, font) > width) {
        Line(x, line, font);
        line = Printable(word);
      } else {
        line = longer;
      }
    }
    Line(x, line, font);
  }

  void Row(const std::string& name, const std::string& value) {
    Need(kTextFont.size * kLineStep);
    const double top = y_;
    Line(kMargin, Printable(name), kTextFont);
    y_ = top;
    Lines(kMargin + kValueColumn, kWidth - 2 * kMargin - kValueColumn, value, kTextFont);
  }

  void Verdict(const std::string& text, bool is_good) {
    Gap(10);
    const double height = 2 * kVerdictFont.size;
    cairo_set_source_rgb(context_.get(), is_good ? 0.87 : 1, is_good ? 0.93 : 0.9, is_good ? 1 : 0.8);
    cairo_rectangle(context_.get(), kMargin, y_, kWidth - 2 * kMargin, height);
    cairo_fill(context_.get());
    const double top = y_;
    y_ += 0.3 * kVerdictFont.size;
    Line(kMargin + 10, Printable(text), kVerdictFont);
    y_ = top + height;
    Gap(6);
  }

  void Gap(double points) { y_ += points; }
  void Heading(const std::string& text) {
    Gap(10);
    // A heading stays with its first row.
    Need(3 * kHeadingFont.size * kLineStep);
    Line(kMargin, Printable(text), kHeadingFont);
  }

  // As wide as the page allows, at the top of a page.
  void Show(const Picture& picture) {
    NewPage();
    const double scale =
        std::min((kWidth - 2 * kMargin) / picture.width, (kHeight - 2 * kMargin) / std::max(1, picture.height));
    const Surface image = SurfaceOf(picture);
    cairo_save(context_.get());
    cairo_translate(context_.get(), kMargin, y_);
    cairo_scale(context_.get(), scale, scale);
    cairo_set_source_surface(context_.get(), image.get(), 0, 0);
    cairo_paint(context_.get());
    cairo_restore(context_.get());
  }

  absl::StatusOr<std::string> Finish() {
    cairo_show_page(context_.get());
    const cairo_status_t drawn = cairo_status(context_.get());
    context_.reset();
    cairo_surface_finish(surface_.get());
    INTRAWARP_RETURN_IF_ERROR(CairoStatus(drawn));
    INTRAWARP_RETURN_IF_ERROR(CairoStatus(cairo_surface_status(surface_.get())));
    return std::move(bytes_);
  }

 private:
  double Width(const std::string& text, Font font) {
    SetCairoFont(context_.get(), font);
    cairo_text_extents_t extents;
    cairo_text_extents(context_.get(), text.c_str(), &extents);
    return extents.x_advance;
  }

  void Line(double x, const std::string& text, Font font) {
    Need(font.size * kLineStep);
    SetCairoFont(context_.get(), font);
    cairo_set_source_rgb(context_.get(), 0, 0, 0);
    cairo_move_to(context_.get(), x, y_ + font.size);
    cairo_show_text(context_.get(), text.c_str());
    y_ += font.size * kLineStep;
  }

  void Need(double height) {
    if (y_ + height > kHeight - kMargin) NewPage();
  }
  void NewPage() {
    cairo_show_page(context_.get());
    y_ = kMargin;
  }

  std::string bytes_;
  Surface surface_;
  std::unique_ptr<cairo_t, DestroyContext> context_;
  double y_ = kMargin;
};

}  // namespace

absl::StatusOr<std::string> RenderReportPdf(const ReportDocument& document) {
  Pages pages(document);
  pages.Lines(kMargin, kWidth - 2 * kMargin, document.title, kTitleFont);
  pages.Verdict(document.verdict, document.is_good);
  for (const std::string& remark : document.remarks) {
    pages.Lines(kMargin, kWidth - 2 * kMargin, remark, kTextFont);
  }
  for (const ReportSection& section : document.sections) {
    pages.Heading(section.heading);
    for (const auto& [name, value] : section.rows) pages.Row(name, value);
  }
  if (document.picture) pages.Show(*document.picture);
  return pages.Finish();
}

}  // namespace intrawarp::io
