// Strings and times.
#include "server/api/ollama_text.h"

void mlx_ollama_put_text(mlx_json_writer_t *json, const char *key, const char *text) {
  mlx_json_put_text(json, key, text ? text : "");
}

// The date comes from the count of days, in years that begin in March: then a leap day is the last day.
void mlx_ollama_put_time(mlx_json_writer_t *json, const char *key, int64_t seconds) {
  if (seconds < 0) seconds = 0;
  const int64_t days = seconds / 86400 + 719468, rest = seconds % 86400;
  const int64_t era = days / 146097, day_of_era = days % 146097;
  const int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t shifted = (5 * day_of_year + 2) / 153, day = day_of_year - (153 * shifted + 2) / 5 + 1;
  const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
  const int64_t year = year_of_era + era * 400 + (month <= 2);
  mlx_json_put_format(json, key, "%04lld-%02lld-%02lldT%02lld:%02lld:%02lldZ", (long long)year,
                      (long long)month, (long long)day, (long long)(rest / 3600), (long long)(rest / 60 % 60),
                      (long long)(rest % 60));
}
