# Selects the lines of third_party/components.txt for a package. release/notices.sh and release/sbom.sh source this
# file.

# Prints one line per component: "name|version|license|pin|files", without blanks around the bars.
components_of() {  # PLATFORM FORM
  local system=${1%%-*}
  sed -e '/^#/d' -e 's/ *| */|/g' third_party/components.txt | awk -F'|' -v os="$system" -v form="$2" '
    NF != 6 { printf "third_party/components.txt: expected 6 columns, found %d: %s\n", NF, $0 > "/dev/stderr"; exit 1 }
    $6 !~ /^(all|linux|windows|full)$/ { printf "third_party/components.txt: %s: unknown place %s\n", $1, $6 > "/dev/stderr"; exit 1 }
    $6 == "all" || $6 == os || ($6 == "full" && form == "full") { print $1 "|" $2 "|" $3 "|" $4 "|" $5 }'
}
