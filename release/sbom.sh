#!/usr/bin/env bash
# Prints the software bill of materials of one package as SPDX 2.3 JSON: mlxcel, and every component of
# third_party/components.txt in the package, with the checksum of its source.
#
#   release/sbom.sh NAME PLATFORM full|runtime VERSION EPOCH BINARY WHEELS
#
# The digest of BINARY identifies the document. WHEELS is the folder of the wheels of a full package ("" for none).
set -euo pipefail
cd "$(dirname "$0")/.."
. release/components.sh
name=$1 platform=$2 form=$3 version=$4 epoch=$5 binary=$6 wheels=$7

die() { echo "release/sbom.sh: $1" >&2; exit 1; }
digest() { sha256sum "$1" | cut -d' ' -f1; }
identifier() { printf 'SPDXRef-%s' "$(printf %s "$1" | tr -cs 'A-Za-z0-9.\n' - | sed 's/-*$//')"; }

# Prints "KIND VERSION SHA256" of the crate or wheel of a component. zig is a build tool and httptools a source archive:
# neither is a wheel in WHEELS, so their first pinned hash is printed.
origin() {  # PIN
  local row file
  row=$(awk -v name="$1" '$1 == name {print "cargo", $2, $3}' third_party/crates.txt)
  [ -n "$row" ] || row=$(awk -v name="${1#npm:}" '$1 == name {print "npm", $2, $3}' third_party/npm.txt)
  if [ -z "$row" ]; then
    row=$(awk -v name="$1==" 'index($1, name) == 1 {sub(name, "", $1); print "pypi", $1; exit}' third_party/python.txt)
    [ -n "$row" ] || die "third_party/crates.txt, npm.txt and python.txt have no pin of $1"
    file=$(ls "$wheels/$(printf %s "$1" | tr - _)"-*.whl 2>/dev/null | head -n 1 || true)
    if [ "$1" = ziglang ] || [ "$1" = httptools ]; then
      row="$row $(awk -v name="$1==" 'on {sub(/.*sha256:/, "", $1); print $1; exit} index($1, name) == 1 {on = 1}' third_party/python.txt)"
    else
      [ -n "$file" ] || die "'$wheels' has no wheel of $1"
      row="$row $(digest "$file")"
    fi
  fi
  printf %s "$row"
}

package() {  # NAME VERSION LICENCE PIN
  local kind pinned sum
  read -r kind pinned sum <<<"$(origin "$4")"
  local name=${4#npm:}
  [ ${#sum} -eq 64 ] || die "$4 has no checksum"
  cat <<END
    {
      "SPDXID": "$(identifier "$1")",
      "name": "$1",
      "versionInfo": "$2",
      "downloadLocation": "NOASSERTION",
      "filesAnalyzed": false,
      "licenseConcluded": "$3",
      "licenseDeclared": "$3",
      "copyrightText": "NOASSERTION",
      "checksums": [{"algorithm": "SHA256", "checksumValue": "$sum"}],
      "sourceInfo": "from $4 $pinned, which has this checksum",
      "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": "pkg:$kind/${name/@/%40}@${pinned/+/%2B}"}]
    },
END
}

rows=$(components_of "$platform" "$form")
cat <<END
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "$name-$version",
  "documentNamespace": "urn:mlxcel:sbom:$name:$version:$(digest "$binary")",
  "creationInfo": {
    "created": "$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)",
    "creators": ["Tool: mlxcel-release/sbom.sh"]
  },
  "documentDescribes": ["SPDXRef-mlxcel"],
  "packages": [
END
while IFS='|' read -r title number licence pin files; do package "$title" "$number" "$licence" "$pin"; done <<<"$rows"
cat <<END
    {
      "SPDXID": "SPDXRef-mlxcel",
      "name": "mlxcel",
      "versionInfo": "$version",
      "packageFileName": "$name",
      "primaryPackagePurpose": "APPLICATION",
      "downloadLocation": "NOASSERTION",
      "filesAnalyzed": false,
      "licenseConcluded": "Apache-2.0",
      "licenseDeclared": "Apache-2.0",
      "copyrightText": "NOASSERTION"
    }
  ],
  "hasExtractedLicensingInfos": [
END
# Licenses that are not in SPDX's list.
separator=''
for reference in $(grep -o 'LicenseRef-[A-Za-z0-9.-]*' <<<"$rows" | sort -u); do
  case $reference in
    LicenseRef-NVIDIA-CUDA-EULA) title="End User License Agreement of NVIDIA's CUDA toolkit" ;;
    LicenseRef-mingw-w64) title='Licenses of the mingw-w64 runtime' ;;
    *) die "$reference has no title in this script" ;;
  esac
  printf '%s    {"licenseId": "%s", "name": "%s", "extractedText": "The text is in THIRD_PARTY_NOTICES.txt of the same package."}' "$separator" "$reference" "$title"
  separator=$',\n'
done
cat <<END

  ],
  "relationships": [
END
while IFS='|' read -r title number licence pin files; do
  case $title in 'IREE compiler' | NVRTC | LLVM*) relation=CONTAINS ;; *) relation=STATIC_LINK ;; esac
  printf '    {"spdxElementId": "SPDXRef-mlxcel", "relationshipType": "%s", "relatedSpdxElement": "%s"},\n' $relation "$(identifier "$title")"
done <<<"$rows"
cat <<END
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-mlxcel"}
  ]
}
END
