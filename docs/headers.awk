# What Doxygen reads of a public header: the status X-macro as documented enumerators, and
# "@retval A, B text" as one entry for each.
/^ +X\([A-Z_]+, [0-9]+, ".*"\)/ {
    row = $0
    sub(/^ +X\(/, "", row)
    sub(/"\).*/, "", row)
    split(row, part, /, *"?/)
    message = row
    sub(/^[^"]*"/, "", message)
    rows[++count] = sprintf("    MEMOPT_%s = %s, /**< %s. */", part[1], part[2], message)
}
/^ +MEMOPT_STATUS_LIST\(/ {
    print "/** @endcond */"
    for (i = 1; i <= count; i++)
        print rows[i]
    print "/** @cond INTERNAL */"
    next
}
/@retval MEMOPT_[A-Z_]+(,| or) #?MEMOPT_/ {
    line = $0
    while (match(line, /@retval MEMOPT_[A-Z_]+(,| or) /)) {
        name = substr(line, RSTART + 8, RLENGTH - 8)
        sub(/(,| or) $/, "", name)
        rest = substr(line, RSTART + RLENGTH)
        text = rest
        while (sub(/^#?MEMOPT_[A-Z_]+(,| or) */, "", text))
            ;
        sub(/^#?MEMOPT_[A-Z_]+ */, "", text)
        print " * @retval " name " " text
        sub(/^#/, "", rest)
        line = " * @retval " rest
    }
    print line
    next
}
{ print }
