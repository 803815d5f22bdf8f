# For release/notices.sh and release/sbom.sh, which source it: the rows of third_party/components.txt that a package holds.

# Prints "name|version|licence|pin|files" of each, without blanks around the bars.
components_of() {  # PLATFORM FORM
  local system=${1%%-*}
  sed -e '/^#/d' -e 's/ *| */|/g' third_party/components.txt | awk -F'|' -v os="$system" -v form="$2" '
    NF != 6 { printf "third_party/components.txt: a row with %d columns: %s\n", NF, $0 > "/dev/stderr"; exit 1 }
    $6 !~ /^(all|linux|windows|full)$/ { printf "third_party/components.txt: %s is nowhere: %s\n", $1, $6 > "/dev/stderr"; exit 1 }
    $6 == "all" || $6 == os || ($6 == "full" && form == "full") { print $1 "|" $2 "|" $3 "|" $4 "|" $5 }'
}
