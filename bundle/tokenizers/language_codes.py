"""BCP-47 codes for the languages of a family of checkpoints."""

import re
from collections import Counter
from collections.abc import Iterable

UNDETERMINED = "und"
"""The language code of a model whose files do not name its languages."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# fmt: off
M2M100_CODES = _words(
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr ht hu hy "
    "id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps pt ro ru "
    "sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu"
)
"""The languages of M2M100, in the order of their tokens."""

WMT21_CODES = _words("en ha is ja cs ru zh de")
"""The languages of the WMT21 checkpoints, in the order of their tokens."""

MBART_CODES = _words(
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
)
"""The languages of mBART-25, in the order of their tokens."""

MBART50_CODES = MBART_CODES + _words(
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)
"""The languages of mBART-50, in the order of their tokens."""

SHORT = dict(
    pair.split(":")
    for pair in _words(
        "aar:aa abk:ab afr:af aka:ak amh:am ara:ar arg:an asm:as ava:av ave:ae aym:ay aze:az bak:ba bam:bm bel:be "
        "ben:bn bis:bi bod:bo bos:bs bre:br bul:bg cat:ca ces:cs cha:ch che:ce chu:cu chv:cv cor:kw cos:co cre:cr "
        "cym:cy dan:da deu:de div:dv dzo:dz ell:el eng:en epo:eo est:et eus:eu ewe:ee fao:fo fas:fa fij:fj fin:fi "
        "fra:fr fry:fy ful:ff gla:gd gle:ga glg:gl glv:gv grn:gn guj:gu hat:ht hau:ha hbs:sh heb:he her:hz hin:hi "
        "hmo:ho hrv:hr hun:hu hye:hy ibo:ig ido:io iii:ii iku:iu ile:ie ina:ia ind:id ipk:ik isl:is ita:it jav:jv "
        "jpn:ja kal:kl kan:kn kas:ks kat:ka kau:kr kaz:kk khm:km kik:ki kin:rw kir:ky kom:kv kon:kg kor:ko kua:kj "
        "kur:ku lao:lo lat:la lav:lv lim:li lin:ln lit:lt ltz:lb lub:lu lug:lg mah:mh mal:ml mar:mr mkd:mk mlg:mg "
        "mlt:mt mon:mn mri:mi msa:ms mya:my nau:na nav:nv nbl:nr nde:nd ndo:ng nep:ne nld:nl nno:nn nob:nb nor:no "
        "nya:ny oci:oc oji:oj ori:or orm:om oss:os pan:pa pli:pi pol:pl por:pt pus:ps que:qu roh:rm ron:ro run:rn "
        "rus:ru sag:sg san:sa sin:si slk:sk slv:sl sme:se smo:sm sna:sn snd:sd som:so sot:st spa:es sqi:sq srd:sc "
        "srp:sr ssw:ss sun:su swa:sw swe:sv tah:ty tam:ta tat:tt tel:te tgk:tg tgl:tl tha:th tir:ti ton:to tsn:tn "
        "tso:ts tuk:tk tur:tr twi:tw uig:ug ukr:uk urd:ur uzb:uz ven:ve vie:vi vol:vo wln:wa wol:wo xho:xh yid:yi "
        "yor:yo zha:za zho:zh zul:zu "
        # One language of a group, with the code of the group, which usually means this language.
        "arb:ar cmn:zh ekk:et lvs:lv zsm:ms pes:fa npi:ne ory:or azj:az khk:mn plt:mg swh:sw als:sq uzn:uz ydd:yi "
        "pbt:ps gaz:om ayr:ay kmr:ku"
    )
)
"""ISO 639-3 codes with their shorter equivalent in ISO 639-1, which BCP 47 requires."""
# fmt: on

LANGUAGE_GROUPS = _words(
    "aav afa alv art bat bnt cau ccs cel cpf cpp cus dra euq fiu gem gmq gmw iir inc ine itc kar mkh mul nic paa phi "
    "poz pqe roa sal sem sit sla ssa taw trk tut urj wot zle zls zlw"
)
"""Codes of groups of languages (ISO 639-5) that OPUS-MT has models of."""

CORRECTED = {"ns": "nso"}
"""Codes that families use with another meaning than ISO 639, and the right code."""

CHINESE = {"CN": "Hans", "SG": "Hans", "TW": "Hant", "HK": "Hant", "MO": "Hant"}
"""The script of Chinese in each region."""


def bcp47_codes(names: Iterable[str], *, shortest: bool) -> dict[str, str]:
    """The BCP-47 code for each of a family's own names, such as fra_Latn, fr_XX, fra, or pt_br. Codes are unique.

    With `shortest`, script and region are left out if a language occurs once among `names`; Chinese keeps its script.
    A name that is only another spelling of one before it is left out.
    """
    parts = {name: _parts(name) for name in names}
    counts = Counter(language for language, _, _ in parts.values())
    codes: dict[str, str] = {}
    for name, (language, script, region) in parts.items():
        short = SHORT.get(language, language)
        if shortest and short == "zh":
            script, region = script or CHINESE.get(region, ""), ""
        elif shortest and counts[language] == 1:
            script = region = ""
        for first in (short, language):
            code = "-".join(part for part in (first, script, region) if part)
            if code not in codes.values():
                codes[name] = code
                break
    return codes


def _parts(name: str) -> tuple[str, str, str]:
    """Language, script and region; "" for a missing part."""
    language, *rest = re.split("[-_]", name)
    script = region = ""
    for part in rest:
        if len(part) == 4:
            script = part.title()
        elif part.upper() != "XX":
            region = part.upper()
    language = language.lower()
    return CORRECTED.get(language, language), script, region
